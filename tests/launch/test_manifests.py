"""The batch script of SLURM, and mistakes that are found before a cluster sees them."""

import re
import subprocess

import pytest

from conveyor.errors import UserError
from conveyor.launch.cluster import Cluster
from conveyor.launch.job import LaunchPlan
from conveyor.launch.manifests import emit

PROGRAM = ["conveyor", "train", "--data", "cifar10"]
PLAN = LaunchPlan(instances=4, replicas=8, job="night-run", environment={"DATA_DIR": "/data"}, max_restarts=3)


def test_slurm_script() -> None:
    script = emit(
        "slurm", [*PROGRAM, "--name", "it's"], PLAN, Cluster(num_hosts=2, cpus=3, time="1-12:00:00", partition="big")
    )
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    headers = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --nodes=2" in headers
    assert "#SBATCH --ntasks-per-node=2" in headers
    assert "#SBATCH --cpus-per-task=3" in headers
    assert script.index("#SBATCH --requeue") < script.index("set -euo"), "directives come before the first command"
    assert "export CONVEYOR_REPLICAS=8" in script
    made = next(line for line in script.splitlines() if line.startswith("export CONVEYOR_SECRET="))
    shown = subprocess.run(["bash"], input=f"{made}\necho $CONVEYOR_SECRET", text=True, capture_output=True, check=True)
    assert re.fullmatch("[0-9a-f]{64}\n", shown.stdout)
    assert "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK" in script
    assert """srun --kill-on-bad-exit=1 conveyor train --data cifar10 --name 'it'"'"'s'""" in script


@pytest.mark.parametrize(
    ("kind", "plan", "cluster", "message"),
    [
        ("k8s", LaunchPlan(job="Night_Run"), Cluster(), "small letters"),
        ("k8s", PLAN, Cluster(memory="much"), "512Mi"),
        ("k8s", PLAN, Cluster(volumes=("images",)), "SOURCE:PATH"),
        ("k8s", PLAN, Cluster(volumes=("images:data",)), "SOURCE:PATH"),
        ("jobset", PLAN, Cluster(num_hosts=2, min_hosts=1), "--min-hosts does not go with --emit jobset"),
        ("trainjob", PLAN, Cluster(num_hosts=2, min_hosts=1), "--min-hosts does not go with --emit trainjob"),
        ("trainjob", LaunchPlan(job="1st"), Cluster(), "begin with a letter"),
        ("sky", PLAN, Cluster(num_hosts=2, min_hosts=1), "--min-hosts does not go with --emit sky"),
        ("sky", PLAN, Cluster(gpus=1), "--gpu-type"),
        ("sky", PLAN, Cluster(volumes=("images:/data",)), "write s3://images:PATH"),
        ("slurm", PLAN, Cluster(time="soon"), "time of SLURM"),
        ("slurm", PLAN, Cluster(num_hosts=3), "multiple of 3"),
    ],
)
def test_mistakes_are_found_before_the_cluster_does(
    kind: str, plan: LaunchPlan, cluster: Cluster, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        emit(kind, PROGRAM, plan, cluster)
