"""A job as a batch script for SLURM, or as YAML for Kubernetes or SkyPilot, made from a `LaunchPlan`."""

from collections.abc import Sequence

from conveyor.errors import UserError
from conveyor.launch.cluster import Cluster
from conveyor.launch.job import LaunchPlan
from conveyor.launch.slurm_script import slurm
from conveyor.options.units import many


def emit(kind: str, argv: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> str:
    """The script or manifest as text."""
    if not argv:
        raise UserError("there is nothing to start: give the command of a worker after --.")
    if plan.num_workers % cluster.num_hosts:
        raise UserError(
            f"{many(plan.num_workers, 'worker')} cannot be spread evenly over {cluster.num_hosts} machines: "
            f"choose a multiple of {cluster.num_hosts}."
        )
    if kind == "slurm":
        return slurm(argv, plan, cluster)
    import yaml

    from conveyor.launch import kubernetes, skypilot

    if kind == "sky":
        return str(yaml.safe_dump(skypilot.task(argv, plan, cluster), sort_keys=False))
    return str(yaml.safe_dump_all(kubernetes.manifests(kind, argv, plan, cluster), sort_keys=False))
