"""What to start: machines, worker processes on each, and what they are given. Pure values, no torch."""

import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from conveyor.errors import UserError
from conveyor.launch.cores import Budget, available_cores, deal_cores, numa_nodes
from conveyor.launch.interface import addresses, chosen_interface, use_interface
from conveyor.launch.rank import LOOPBACK, loopback
from conveyor.options.field import option
from conveyor.options.units import many

DEFAULT_PORT = 29400
PASSED_ON = (
    "instances", "workers", "job", "replicas", "devices_per_replica", "min_hosts", "interface", "secret_file", "threads",
    "max_restarts",
)  # fmt: skip
"""Of a plan: what the command of each host says besides the hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """One job. Each instance holds `replicas / instances` data-parallel copies and is one worker process.

    `workers` starts fewer processes than instances where there are fewer cores: results do not depend on it.
    """

    instances: int = 1
    workers: int | None = None
    """Worker processes; default: one per instance."""
    replicas: int | None = option(None, "Data-parallel copies over all instances.", metavar="N", minimum=1)
    """Default: as the started program says."""
    devices_per_replica: int = option(1, "Devices (stages) of each copy.", metavar="N", minimum=1)
    hosts: tuple[str, ...] = ()
    """Machines; empty: this one. Instances are spread over them evenly, in order."""
    this_host: int | None = None
    """Start only this host's share; default: the whole job, through ssh when there are several hosts."""
    min_hosts: int | None = option(None, "Elastic: go on with at least N machines.", metavar="N")
    port: int = option(0, "Port of the first host's rendezvous.", metavar="P", minimum=0, maximum=65535)
    """0 lets the system choose (one host only)."""
    interface: str | None = option(
        None, "Network interface of the workers' traffic, or its network (10.1.3.0/24).", metavar="NAME|NETWORK"
    )
    secret_file: str | None = option(
        None,
        "Secret of a job on several machines, the same on each (- reads it from standard input); default: the user's own, "
        "or through ssh a new one for each job.",
        metavar="FILE",
    )
    secret: str = field(default="", repr=False)
    """The secret itself, where the launcher of the whole job has handed it over."""
    numa: bool = option(False, "No worker crosses a NUMA node.")
    threads: int | None = option(None, "Threads of each worker; default: its share of cores.", metavar="N", minimum=1)
    max_restarts: int = option(0, "Starts again after a worker was killed.", metavar="N", minimum=0)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables handed to every worker on every host."""
    tagged: bool = False
    """Prefix each line with the worker's number."""
    all_output: bool = True
    """Whether the workers after the first may write to the terminal."""
    job: str = option("conveyor", "Name of the job.", metavar="NAME")
    timeout: float = 300.0
    """Seconds to wait for the other hosts."""
    grace: int = 30
    """Seconds a worker has to save and end after a signal, before SIGKILL."""

    def __post_init__(self) -> None:
        hosts = max(1, len(self.hosts))
        if self.instances < 1:
            raise UserError(f"{self.instances} instances: a job needs at least one.")
        if self.instances % hosts:
            raise UserError(
                f"{many(self.instances, 'instance')} cannot be spread evenly over {hosts} hosts: choose a multiple of {hosts}."
            )
        if self.replicas is not None:
            if self.replicas < self.instances:
                raise UserError(
                    f"{self.instances} instances for {many(self.replicas, 'replica')}: an instance holds at least one replica."
                )
            if self.replicas % self.instances:
                raise UserError(
                    f"{self.replicas} replicas cannot be divided evenly among {self.instances} instances: "
                    f"choose a multiple of {self.instances}."
                )
        if self.workers is not None and (self.workers < 1 or self.workers % hosts):
            raise UserError(f"{many(self.workers, 'worker')} cannot be spread evenly over {many(hosts, 'host')}.")
        if self.this_host is not None and not 0 <= self.this_host < hosts:
            raise UserError(f"host number {self.this_host} of {hosts}: count from 0.")
        if self.min_hosts is not None and not 1 <= self.min_hosts <= hosts:
            raise UserError(f"at least {self.min_hosts} of {hosts} hosts: choose 1 to {hosts}.")
        if hosts > 1 and self.port == 0:
            object.__setattr__(self, "port", DEFAULT_PORT)

    @property
    def num_hosts(self) -> int:
        """Machines of the job."""
        return max(1, len(self.hosts))

    @property
    def num_workers(self) -> int:
        """Worker processes of the job."""
        return self.workers or self.instances

    @property
    def workers_per_host(self) -> int:
        """Worker processes on each machine."""
        return self.num_workers // self.num_hosts

    @property
    def meeting_host(self) -> str:
        """The address where the rendezvous listens."""
        return self.hosts[0].rpartition("@")[2] if self.num_hosts > 1 else LOOPBACK

    def budgets(self) -> list[Budget]:
        """The cores of each local worker."""
        mine = available_cores()
        return deal_cores(self.workers_per_host, mine, self.threads, numa_nodes(mine) if self.numa else None)

    def worker_environment(self) -> dict[str, str]:
        """Variables of every worker besides those of the elastic agent."""
        budgets = self.budgets()
        variables = dict(self.environment)
        variables["CONVEYOR_CORES"] = ";".join(",".join(map(str, budget.cores)) for budget in budgets)
        variables["CONVEYOR_THREADS"] = ";".join(str(budget.threads) for budget in budgets)
        variables["CONVEYOR_INSTANCES"] = str(self.instances)
        if self.min_hosts is not None:
            variables["CONVEYOR_ELASTIC"] = "1"
        if self.replicas is not None:
            variables["CONVEYOR_REPLICAS"] = str(self.replicas)
            variables["CONVEYOR_DEVICES_PER_REPLICA"] = str(self.devices_per_replica)
        if self.interface or self.num_hosts == 1:
            use_interface(variables, chosen_interface(self.interface) if self.interface else loopback())
        return variables


def local_host_index(hosts: Sequence[str]) -> int | None:
    """Which entry of `hosts` names this machine; None when it is not among them."""
    names = {"localhost", LOOPBACK, socket.gethostname(), socket.gethostname().partition(".")[0]}
    names |= {address for found in addresses().values() for address in found}
    for index, host in enumerate(hosts):
        if host.rpartition("@")[2] in names:
            return index
    return None


def host_command(plan: LaunchPlan, index: int | str, argv: Sequence[str]) -> list[str]:
    """The command that starts host number `index`'s share of the job, to be run on that host."""
    command = ["conveyor", "launch"]
    if plan.hosts:
        command += ["--hosts", ",".join(plan.hosts), "--host-index", str(index), "--port", str(plan.port)]
    for name in PASSED_ON:
        value = getattr(plan, name) if name != "devices_per_replica" or plan.replicas is not None else None
        command += [f"--{name.replace('_', '-')}", str(value)] if value not in (None, 0) else []
    command += ["--numa"] * plan.numa + ["--tag-output"] * plan.tagged
    for name, value in sorted(plan.environment.items()):
        command += ["--env", f"{name}={value}"]
    return [*command, "--", *argv]


def ssh_command(host: str, command: Sequence[str], folder: str) -> list[str]:
    """`command` through ssh, in the same folder; its standard input stays ours."""
    return ["ssh", "-o", "BatchMode=yes", host, f"cd {shlex.quote(folder)} && exec {shlex.join(command)}"]
