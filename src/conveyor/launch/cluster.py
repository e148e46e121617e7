"""What every kind of batch script and manifest needs: the machines of a job, its name, the variables of its workers."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from conveyor.errors import UserError
from conveyor.launch.job import LaunchPlan, host_command
from conveyor.options.field import option


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a cluster's scheduler needs besides the plan."""

    num_hosts: int = 1
    min_hosts: int | None = None
    """Elastic: the job goes on with so many machines; default: all."""
    image: str = option("conveyor:latest", "Container image.")
    namespace: str = option("default", "Kubernetes namespace.")
    volumes: tuple[str, ...] = ()
    """`SOURCE:PATH`: a claim of Kubernetes or a bucket of SkyPilot, and where the workers see it."""
    cpus: int = option(1, "Cores of each worker.", metavar="N", minimum=1)
    memory: str = option("4Gi", "Memory of each worker.")
    gpus: int = option(0, "GPUs of each worker.", metavar="N", minimum=0)
    gpu_type: str | None = option(None, "For SkyPilot: which GPU, such as A100.", metavar="NAME")
    time: str | None = option(None, "Time limit of the SLURM job.")
    partition: str | None = option(None, "Partition of SLURM.")
    array: str | None = option(
        None, "Job array of SLURM; write $SLURM_ARRAY_TASK_ID into the command, in single quotes.", metavar="0-3"
    )

    def workers(self, plan: LaunchPlan) -> int:
        """Worker processes on each machine."""
        return plan.num_workers // self.num_hosts

    def cores(self, plan: LaunchPlan) -> int:
        """Cores of each machine."""
        return self.workers(plan) * (plan.threads or self.cpus)

    def command(self, argv: Sequence[str], plan: LaunchPlan, hosts: Sequence[str], index: str) -> list[str]:
        """What each machine runs; `hosts` are their names, `index` the scheduler's word for the number of one."""
        if self.num_hosts == 1:
            return host_command(dataclasses.replace(plan, hosts=()), 0, argv)
        return host_command(dataclasses.replace(plan, hosts=tuple(hosts), min_hosts=self.min_hosts), index, argv)

    def mounts(self) -> list[tuple[str, str]]:
        """(source, absolute path) of each volume."""
        found = [(source, path) for source, _, path in (text.rpartition(":") for text in self.volumes)]
        for text, (source, path) in zip(self.volumes, found, strict=True):
            if not source or not re.fullmatch(r"(/[\w.-]+)+", path):
                raise UserError(f"--volume {text!r} is not SOURCE:PATH, such as images:/data.")
        return found

    def memory_of(self, plan: LaunchPlan) -> tuple[float, str]:
        """(number, unit) of the memory of each machine."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|K|M|G|T)?", self.memory)
        if match is None:
            raise UserError(f"--memory {self.memory!r} is not an amount such as 4Gi or 512Mi.")
        return self.workers(plan) * float(match[1]), match[2] or ""


def name(text: str) -> str:
    """Kubernetes' rule for names, which SLURM accepts as well."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text):
        raise UserError(
            f"the name {text!r} must consist of small letters, digits and dashes, at most 63, no dash at an end."
        )
    return text


def variables(plan: LaunchPlan) -> dict[str, str]:
    """The environment variables of every worker, however it is started."""
    found = dict(plan.environment)
    if plan.replicas is not None:
        found |= {"CONVEYOR_REPLICAS": str(plan.replicas), "CONVEYOR_INSTANCES": str(plan.instances)}
    return found
