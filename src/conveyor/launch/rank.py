"""The rank of this process among the workers that some launcher started: torchrun, mpirun, srun, submitit or TF_CONFIG.

Functions of an environment, and of a process group if there is one; importing this module does not import torch.
"""

import dataclasses
import os
import re
import socket
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from conveyor.errors import UserError
from conveyor.files import parse_json
from conveyor.options.units import many
from conveyor.world import restarts

LOOPBACK = "127.0.0.1"
GROUP, SUBMITIT = "process group", "submitit"
MAX_HOSTS = 1 << 14
TF_CONFIG_EXAMPLE = '{"cluster": {"worker": ["host0:3636", "host1:3636"]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One worker among `size`, and the address of worker 0."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    launcher: str
    job: str = ""
    """What names this job and stays the same when it is started again; empty when the launcher gives nothing."""
    hosts: tuple[str, ...] = ()
    """All machines, the first one first; empty when the launcher does not list them."""

    @property
    def catches(self) -> bool:
        """Whether what started this worker goes on in its process, and wants an exception rather than an exit code."""
        return self.launcher in (GROUP, SUBMITIT)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise UserError(f"{self.launcher} says worker {self.rank} of {self.size}: the rank must be below the size.")


def detect(environment: Mapping[str, str]) -> Place | None:
    """The place that a launcher gave this process, or None when it was not started as one of several workers."""
    for reader in (_torchrun, _tf_config, _mpirun, _submitit, _slurm):
        place = reader(environment)
        if place is not None:
            return place
    return None


def of_group(environment: Mapping[str, str]) -> Place | None:
    """The place in the process group that the caller initialised (Ray Train does), or None when there is none."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return _as_torchrun(environment, int(dist.get_rank()), int(dist.get_world_size()), GROUP)


def is_main(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is the one of its job that writes."""
    place = of_group(environment) or detect(environment)
    return place is None or place.rank == 0


def loopback() -> str:
    """The name of the loopback interface."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "lo")


def job_port(job: str) -> int:
    """A port that all workers of a job agree on without communication: a hash of the job's name in 20000..39999."""
    return 20000 + zlib.crc32(job.encode()) % 20000


def _torchrun(environment: Mapping[str, str]) -> Place | None:
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(environment.get(name) for name in needed):
        return None
    return _as_torchrun(environment, number(environment, "RANK"), number(environment, "WORLD_SIZE"), "torchrun")


def _as_torchrun(environment: Mapping[str, str], rank: int, size: int, launcher: str) -> Place:
    """The place by torchrun's variables, some of which Ray Train sets too."""
    return Place(
        rank=rank,
        size=size,
        local_rank=number(environment, "LOCAL_RANK", 0),
        local_size=number(environment, "LOCAL_WORLD_SIZE", size),
        address=environment.get("MASTER_ADDR", LOOPBACK),
        port=number(environment, "MASTER_PORT", 0),
        launcher=launcher,
        job=restarts.job(environment),
    )


def _mpirun(environment: Mapping[str, str]) -> Place | None:
    if "OMPI_COMM_WORLD_RANK" not in environment or "OMPI_COMM_WORLD_SIZE" not in environment:
        return None
    size = number(environment, "OMPI_COMM_WORLD_SIZE")
    if size < 2:
        return None
    local_size = number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", size)
    address = environment.get("MASTER_ADDR") or (LOOPBACK if local_size == size else _mpirun_address(environment))
    if not address:
        raise UserError(
            "mpirun started workers on several machines and none of them knows where worker 0 is: "
            "add -x MASTER_ADDR=<first host> to the mpirun command."
        )
    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid") or "mpirun"
    return Place(
        rank=number(environment, "OMPI_COMM_WORLD_RANK"),
        size=size,
        local_rank=number(environment, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
        local_size=local_size,
        address=address,
        port=number(environment, "MASTER_PORT", job_port(job)),
        launcher="mpirun",
    )


def _mpirun_address(environment: Mapping[str, str]) -> str:
    """The host of mpirun itself from the URI it hands to its workers (`12.0;tcp://10.0.0.1,172.17.0.1:4711`)."""
    uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
    found = re.search(r"tcp://([^,:;]+)", uri)
    return found.group(1) if found else ""


def _submitit(environment: Mapping[str, str]) -> Place | None:
    """submitit's local executor; its SLURM executor starts tasks through srun, whose variables say all."""
    if environment.get("SUBMITIT_EXECUTOR") == "slurm" and (place := _slurm(environment)) is not None:
        return dataclasses.replace(place, launcher=SUBMITIT)
    if environment.get("SUBMITIT_EXECUTOR") != "local":
        return None
    size = number(environment, "SUBMITIT_LOCAL_NTASKS")
    if size < 2:
        return None
    job = environment.get("SUBMITIT_LOCAL_JOB_ID", "local")
    return Place(
        rank=number(environment, "SUBMITIT_LOCAL_GLOBALID"),
        size=size,
        local_rank=number(environment, "SUBMITIT_LOCAL_LOCALID", 0),
        local_size=size,
        address=LOOPBACK,
        port=job_port(job),
        launcher=SUBMITIT,
        job=f"submitit-{job}",
    )


def _slurm(environment: Mapping[str, str]) -> Place | None:
    """Inside `srun` only: the batch script itself also has SLURM_PROCID, but no step."""
    if "SLURM_PROCID" not in environment or "SLURM_STEP_NUM_TASKS" not in environment:
        return None
    size = number(environment, "SLURM_STEP_NUM_TASKS")
    if size < 2:
        return None
    nodes = expand_hosts(environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "")
    address = environment.get("MASTER_ADDR") or (nodes[0] if len(nodes) > 1 else LOOPBACK)
    per_node = -(-size // max(1, len(nodes)))
    job = f"{environment.get('SLURM_JOB_ID', 'slurm')}.{environment.get('SLURM_STEP_ID', '0')}"
    # A script that starts its step again keeps the folder of the job by this name.
    name = restarts.job(environment) or (job.replace(".", "-") if "SLURM_JOB_ID" in environment else "")
    return Place(
        rank=number(environment, "SLURM_PROCID"),
        size=size,
        local_rank=number(environment, "SLURM_LOCALID", 0),
        local_size=_tasks_here(environment, per_node),
        address=address,
        port=number(environment, "MASTER_PORT", job_port(job)),
        launcher="slurm",
        job=name,
        hosts=tuple(nodes),
    )


def _tasks_here(environment: Mapping[str, str], default: int) -> int:
    """This node's entry of SLURM_STEP_TASKS_PER_NODE, which compresses repetitions: `4(x2),3`."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found:
            counts += [int(found.group(1))] * int(found.group(2) or 1)
    node = number(environment, "SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else default


def _tf_config(environment: Mapping[str, str]) -> Place | None:
    text = environment.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = parse_json(text)
        workers = list(config["cluster"]["worker"])
        index = environment.get("OMPI_COMM_WORLD_RANK") or config.get("task", {}).get("index")
        rank = -1 if index is None else int(index)
        hosts = [str(worker).rpartition(":")[0] for worker in workers]
        port = int(str(workers[0]).rpartition(":")[2])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UserError(f"TF_CONFIG cannot be read ({error}); it should look like {TF_CONFIG_EXAMPLE}.") from error
    if len(workers) < 2:
        return None
    if index is None:
        raise UserError("TF_CONFIG has no task.index, and no mpirun rank is set: say which worker this is.")
    if rank >= len(workers):
        raise UserError(f"TF_CONFIG lists {many(len(workers), 'worker')}, and this one has the index {rank}.")
    return Place(
        rank=rank,
        size=len(workers),
        local_rank=hosts[:rank].count(hosts[rank]),
        local_size=hosts.count(hosts[rank]),
        address=hosts[0],
        port=port,
        launcher="TF_CONFIG",
    )


def expand_hosts(text: str) -> list[str]:
    """The machines of a host list in SLURM's notation: `a,b[01-03,7]` is a, b01, b02, b03, b7."""
    hosts: list[str] = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*", text):
        hosts += _expand_one(part.strip())
    return hosts


def _expand_one(text: str) -> list[str]:
    found = re.search(r"\[([^\]]*)\]", text)
    if not found:
        return [text] if text else []
    before, after = text[: found.start()], text[found.end() :]
    hosts: list[str] = []
    for item in found.group(1).split(","):
        first, _, last = item.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise UserError(
                f"the host list {text!r} cannot be read: {item!r} is not a number or a range such as 01-04."
            )
        if int(last or first) - int(first) >= MAX_HOSTS:
            raise UserError(f"the host list {text!r} has more than {MAX_HOSTS} machines: check {item!r}.")
        for index in range(int(first), int(last or first) + 1):
            hosts += _expand_one(f"{before}{index:0{len(first)}d}{after}")
    return hosts


def number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """The whole number in a variable; without a default it must be there."""
    text = environment.get(name, "")
    if not text and default is not None:
        return default
    try:
        return int(text)
    except ValueError:
        raise UserError(f"the environment variable {name} is {text!r}: it must be a whole number.") from None
