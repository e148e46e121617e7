"""What every kind of batch script and manifest needs: the machines of a job, its name, the variables of its workers."""

import re
from dataclasses import dataclass

from conveyor.errors import UserError
from conveyor.launch.job import LaunchPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a cluster's scheduler needs besides the plan."""

    num_hosts: int = 1
    min_hosts: int | None = None
    """Elastic: the job goes on with so many machines; default: all."""
    image: str = "conveyor:latest"
    namespace: str = "default"
    volumes: tuple[str, ...] = ()
    """`SOURCE:PATH`: a claim of Kubernetes or a bucket of SkyPilot, and where the workers see it."""
    cpus: int = 1
    """Cores of each worker."""
    memory: str = "4Gi"
    """Memory of each worker."""
    gpus: int = 0
    """GPUs of each worker."""
    gpu_type: str | None = None
    """Name of the GPU, such as A100, which SkyPilot asks for."""
    time: str | None = None
    """Time limit of SLURM."""
    partition: str | None = None
    array: str | None = None
    """Indices of a job array of SLURM."""

    def mounts(self) -> list[tuple[str, str]]:
        """(source, absolute path) of each volume."""
        found = [(source, path) for source, _, path in (text.rpartition(":") for text in self.volumes)]
        for text, (source, path) in zip(self.volumes, found, strict=True):
            if not source or not re.fullmatch(r"(/[\w.-]+)+", path):
                raise UserError(f"--volume {text!r} is not SOURCE:PATH, such as images:/data.")
        return found

    def memory_of(self, workers: int) -> tuple[float, str]:
        """(number, unit) of the memory of `workers` workers."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|K|M|G|T)?", self.memory)
        if match is None:
            raise UserError(f"--memory {self.memory!r} is not an amount such as 4Gi or 512Mi.")
        return workers * float(match[1]), match[2] or ""


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
