"""A job as a batch script for SLURM, or as YAML for Kubernetes or SkyPilot, made from a `LaunchPlan`."""

import re
import shlex
from collections.abc import Sequence

from conveyor.errors import UserError
from conveyor.launch import secret
from conveyor.launch.cluster import Cluster
from conveyor.launch.cluster import name as _name
from conveyor.launch.cluster import variables as _variables
from conveyor.launch.job import LaunchPlan


def emit(kind: str, argv: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> str:
    """The script or manifest as text."""
    if not argv:
        raise UserError("there is nothing to start: give the command of a worker after --.")
    if plan.num_workers % cluster.num_hosts:
        raise UserError(
            f"{plan.num_workers} workers cannot be spread evenly over {cluster.num_hosts} machines: "
            f"choose a multiple of {cluster.num_hosts}."
        )
    if kind == "slurm":
        return slurm(argv, plan, cluster)
    import yaml

    from conveyor.launch import kubernetes, skypilot

    if kind == "sky":
        return str(yaml.safe_dump(skypilot.task(argv, plan, cluster), sort_keys=False))
    return str(yaml.safe_dump_all(kubernetes.manifests(kind, argv, plan, cluster), sort_keys=False))


def slurm(argv: Sequence[str], plan: LaunchPlan, cluster: Cluster) -> str:
    """An sbatch script: every task of `srun` is one worker and joins by SLURM_PROCID."""
    per_host = plan.num_workers // cluster.num_hosts
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={_name(plan.job)}",
        f"#SBATCH --nodes={cluster.num_hosts}",
        f"#SBATCH --ntasks-per-node={per_host}",
        f"#SBATCH --cpus-per-task={plan.threads or cluster.cpus}",
    ]
    if cluster.gpus:
        lines.append(f"#SBATCH --gpus-per-task={cluster.gpus}")
    if cluster.time:
        if not re.fullmatch(r"\d+|(\d+-)?\d{1,2}(:\d{2}){0,2}", cluster.time):
            raise UserError(f"--time {cluster.time!r} is not a time of SLURM, such as 90, 2:00:00 or 1-12:00:00.")
        # A minute before the limit every worker is asked to save and end.
        lines += [f"#SBATCH --time={cluster.time}", "#SBATCH --signal=USR1@60"]
    if cluster.partition:
        lines.append(f"#SBATCH --partition={_name(cluster.partition)}")
    # A node that dies brings the job back into the queue; it goes on from its last checkpoint.
    lines += ["#SBATCH --requeue", "set -euo pipefail", f"export OMP_NUM_THREADS={plan.threads or cluster.cpus}"]
    # Since SLURM 22.05 a step does not take this over from the job by itself.
    lines += ["export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(_variables(plan).items())]
    # srun hands the environment on; nobody else can read it, as they could a command line.
    lines += [f"export {secret.VARIABLE}=$(od -An -v -N32 -tx1 /dev/urandom | tr -d ' \\n')"]
    if plan.interface:
        if "/" in plan.interface:
            raise UserError(
                f"--interface {plan.interface}: an emitted job needs the interface's name, not its network."
            )
        lines += [f"export GLOO_SOCKET_IFNAME={plan.interface} NCCL_SOCKET_IFNAME={plan.interface}"]
    label = " --label" if plan.tagged else ""
    lines += [f"srun --kill-on-bad-exit=1{label} {shlex.join(argv)}", ""]
    return "\n".join(lines)
