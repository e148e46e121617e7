"""The batch script of SLURM, and mistakes that are found before a cluster sees them."""

import dataclasses
import re
import subprocess
from pathlib import Path

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
    assert script.index("#SBATCH --requeue") < script.index("set -uo"), "directives come before the first command"
    assert "export CONVEYOR_REPLICAS=8" in script
    made = next(line for line in script.splitlines() if line.startswith("export CONVEYOR_SECRET="))
    shown = subprocess.run(["bash"], input=f"{made}\necho $CONVEYOR_SECRET", text=True, capture_output=True, check=True)
    assert re.fullmatch("[0-9a-f]{64}\n", shown.stdout)
    assert "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK" in script
    assert """srun --kill-on-bad-exit=0 --wait=60 conveyor train --data cifar10 --name 'it'"'"'s'""" in script
    for directive in ("--signal=USR1@120", "--requeue", "--open-mode=append"):
        assert f"#SBATCH {directive}" in headers
    assert "[ $starts -lt 3 ]" in script, "--max-restarts"


def test_an_array_of_slurm() -> None:
    words = ["echo", "$SLURM_ARRAY_TASK_ID", 'a "${SLURM_ARRAY_TASK_ID}" $HOME `id` \\']
    script = emit("slurm", words, PLAN, Cluster(num_hosts=2, array="0-3%2"))
    assert "#SBATCH --array=0-3%2" in script
    command = next(line for line in script.splitlines() if " echo " in line).partition("--wait=60 ")[2]
    variables = {"SLURM_ARRAY_TASK_ID": "7", "PATH": "/usr/bin:/bin"}
    shown = subprocess.run(["bash", "-c", command], env=variables, capture_output=True, text=True, check=True)
    assert shown.stdout == '7 a "7" $HOME `id` \\\n'


def test_no_value_becomes_a_command_of_the_script(tmp_path: Path) -> None:
    hostile = (
        f"a$(touch {tmp_path}/1)`touch {tmp_path}/2`\";touch {tmp_path}/3;' ${{SLURM_X:-$(touch {tmp_path}/4)}} \\"
    )
    plan = dataclasses.replace(PLAN, environment={"X": hostile}, interface=f"a;touch {tmp_path.name}5;")
    script = emit("slurm", ["echo", hostile], plan, Cluster(num_hosts=2))
    command = f'srun() {{ shift 2; "$@"; }}\n{script}'
    subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_ID": "1"},
        check=True,
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "plan", "cluster", "message"),
    [
        ("k8s", LaunchPlan(job="Night_Run"), Cluster(), "small letters"),
        ("k8s", PLAN, Cluster(memory="much"), "512Mi"),
        ("k8s", PLAN, Cluster(volumes=("images",)), "SOURCE:PATH"),
        ("k8s", PLAN, Cluster(volumes=("images:data",)), "SOURCE:PATH"),
        ("jobset", PLAN, Cluster(num_hosts=2, min_hosts=1), "--min-hosts does not go with --emit jobset"),
        ("trainjob", PLAN, Cluster(num_hosts=2, min_hosts=1), "--min-hosts does not go with --emit trainjob"),
        *((kind, LaunchPlan(job="1st"), Cluster(), "begin with a letter") for kind in ("trainjob", "jobset", "k8s")),
        ("jobset", LaunchPlan(job="a" * 50), Cluster(), "at most 45 characters"),
        ("trainjob", LaunchPlan(instances=11, job="a" * 49), Cluster(num_hosts=11), "at most 47 characters"),
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
