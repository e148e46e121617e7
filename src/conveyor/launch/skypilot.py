"""A job as a task of SkyPilot: `sky launch task.yaml`, or `sky jobs launch` where machines may be taken away."""

import shlex
from collections.abc import Sequence
from typing import Any

from conveyor.errors import UserError
from conveyor.launch import secret
from conveyor.launch.cluster import Cluster, name, variables
from conveyor.launch.job import LaunchPlan

GIB = {"": 2**-30, "Ki": 2**-20, "Mi": 2**-10, "Gi": 1.0, "Ti": 2.0**10} | {
    unit: 1000.0**power / 2**30 for power, unit in enumerate("KMGT", 1)
}
"""GiB of one unit of `--memory`."""


def task(argv: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> dict[str, Any]:
    """Every machine runs our launcher with the addresses and the number that SkyPilot gives it."""
    if cluster.min_hosts is not None:
        raise UserError(
            "--min-hosts does not go with --emit sky: SkyPilot starts all machines of a task again; use --max-restarts."
        )
    if cluster.gpus and not cluster.gpu_type:
        raise UserError("--emit sky needs the name of the GPU: give --gpu-type, such as A100.")
    number, unit = cluster.memory_of(plan)
    resources: dict[str, Any] = {
        "cpus": f"{cluster.cores(plan)}+",
        "memory": f"{number * GIB[unit]:.4g}+",
        "image_id": f"docker:{cluster.image}",
    }
    if cluster.gpus:
        resources["accelerators"] = f"{cluster.gpu_type}:{cluster.workers(plan) * cluster.gpus}"
    if plan.max_restarts:
        resources["job_recovery"] = {"max_restarts_on_errors": plan.max_restarts}
    # A machine that was replaced resumes the run that it finds.
    found: dict[str, Any] = {
        "name": name(plan.job),
        "num_nodes": cluster.num_hosts,
        "resources": resources,
        "envs": variables(plan) | {"CONVEYOR_ELASTIC": "1"},
    }
    if cluster.num_hosts > 1:
        found["secrets"] = {secret.VARIABLE: secret.new()}
    if cluster.volumes:
        found["file_mounts"] = {path: {"source": _bucket(source), "mode": "MOUNT"} for source, path in cluster.mounts()}
    return found | {"run": _script(argv, plan, cluster)}


def _bucket(source: str) -> str:
    if "://" not in source:
        raise UserError(f"--volume {source}:... is not a bucket, which --emit sky mounts: write s3://{source}:PATH.")
    return source


def _script(argv: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> str:
    # SkyPilot lists the addresses one a line, in the order of the machines' numbers.
    places = {"@hosts@": '"$(echo "$SKYPILOT_NODE_IPS" | paste -sd, -)"', "@index@": '"$SKYPILOT_NODE_RANK"'}
    command = cluster.command(argv, plan, tuple(map(str, range(cluster.num_hosts))), "@index@")
    if cluster.num_hosts > 1:
        command[command.index("--hosts") + 1] = "@hosts@"
    return " ".join(places.get(word) or shlex.quote(word) for word in command) + "\n"
