"""Jobs of a real SLURM (its daemons on this machine, two nodes): every fault ends in the files of an undisturbed run."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.exact import differences
from tests.launch.slurm import Cluster, available

from conveyor.launch.cluster import Cluster as Wanted
from conveyor.launch.job import LaunchPlan
from conveyor.launch.manifests import emit

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(900), pytest.mark.xdist_group("slurm")]
UPDATES = 120
TRAIN = [
    sys.executable, "-m", "conveyor", "train", "--updates", str(UPDATES), "--updates-per-epoch", "20", "--accumulation", "2",
    "--micro-batch-size", "4", "--threads", "1", "--device", "cpu", "--no-validation", "--no-report", "--no-tensorboard",
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if why := available():
        pytest.skip(why)
    made = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "run"
    subprocess.run([*TRAIN, "--quiet", "--layout", "1x1", "--run-dir", str(folder)], check=True, timeout=300)
    return folder


def script(*more: str, restarts: int = 0, array: str | None = None) -> str:
    plan = LaunchPlan(instances=2, threads=1, max_restarts=restarts)
    return emit("slurm", [*TRAIN, *more], plan, Wanted(num_hosts=2, array=array))


def until(done: Callable[[], object], what: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


def checkpoints(folder: Path) -> list[Path]:
    return [path.parent for path in folder.glob("checkpoints/[0-9]*/manifest")]


def workers(folder: Path) -> list[psutil.Process]:
    """The tasks that train in `folder`, worker 0 first; not the shell, srun or slurmstepd above them."""
    found = {}
    for one in psutil.process_iter():
        try:
            if "train" in one.cmdline()[:4] and str(folder) in one.cmdline():
                found[int(one.environ().get("SLURM_PROCID", "0"))] = one
        except (psutil.Error, ValueError):
            continue
    return [found[rank] for rank in sorted(found)]


def kill_a_worker(folder: Path) -> None:
    until(lambda: checkpoints(folder), "a checkpoint")
    workers(folder)[1].kill()


def said(cluster: Cluster, job: str) -> str:
    return (cluster.folder / f"slurm-{job}.out").read_text()


def leave_out_stops(folder: Path, undisturbed: Path) -> None:
    """A run that a signal stopped has a checkpoint and a row of metrics more for it; all others must be the same."""
    for one in checkpoints(folder):
        if not (undisturbed / "checkpoints" / one.name).exists():
            shutil.rmtree(one)
    regular = {line.partition(",")[0] for line in (undisturbed / "metrics.csv").read_text().splitlines()}
    rows = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    (folder / "metrics.csv").write_text("".join(row for row in rows if row.partition(",")[0] in regular))


def check(cluster: Cluster, job: str, folder: Path, undisturbed: Path) -> dict[str, object]:
    cluster.wait(job, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
    assert cluster.state(job) == "COMPLETED", said(cluster, job)
    leave_out_stops(folder, undisturbed)
    assert differences(folder, undisturbed) == []
    assert "--max-time" not in said(cluster, job)
    found: dict[str, object] = json.loads((folder / "result.json").read_text())
    return found


def test_a_killed_worker_is_started_again(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = cluster.submit(script("--run-dir", str(folder), restarts=1))
    kill_a_worker(folder)
    assert check(cluster, job, folder, undisturbed)["restarts"] == 1
    assert "start 1 of 1 more" in said(cluster, job)
    assert cluster.field(job, "Restarts") == "0", "within the same allocation"


def test_no_more_than_max_restarts(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = cluster.submit(script("--run-dir", str(folder)))
    kill_a_worker(folder)
    cluster.wait(job, "FAILED", seconds=60)
    assert cluster.field(job, "ExitCode") == f"{128 + signal.SIGKILL}:0"
    assert checkpoints(folder)


def test_scontrol_requeue(cluster: Cluster, undisturbed: Path) -> None:
    """Without a run folder of its own: the number of the job names it, in every start."""
    job = cluster.submit(script())
    folder = cluster.folder / f"runs/resnet8-digits-{job}"
    until(lambda: checkpoints(folder), "a checkpoint")
    cluster.run("scontrol", "requeue", job)
    until(lambda: cluster.field(job, "Restarts") == "1", "the second start")
    assert check(cluster, job, folder, undisturbed)["restarts"] == 1


def test_the_time_limit_saves_and_requeues(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = cluster.submit(script("--run-dir", str(folder)), "--time=3", "--signal=USR1@175")
    cluster.wait(job, "RUNNING")
    # SLURM sends what is due at its next look at the clock; what is over by then sends the signal for itself.
    until(lambda: checkpoints(folder), "a checkpoint")
    if "SIGUSR1" not in said(cluster, job):
        cluster.run("scancel", "--signal=USR1", job)
    check(cluster, job, folder, undisturbed)
    assert "SIGUSR1: stopped after update" in said(cluster, job)
    assert int(cluster.field(job, "Restarts")) >= 1


def test_a_node_that_is_set_down(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = cluster.submit(script("--run-dir", str(folder)))
    until(lambda: checkpoints(folder), "a checkpoint")
    cluster.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    until(lambda: cluster.field(job, "Restarts") == "1", "the second start")
    # A node that registers again comes back by itself (ReturnToService=2), at any time; then there is nothing to resume.
    resume = ("scontrol", "update", "nodename=n2", "state=resume")
    until(lambda: "DOWN" not in cluster.run("scontrol", "show", "node", "n2") or cluster.answers(*resume), "the node")
    assert check(cluster, job, folder, undisturbed)["restarts"] == 1


def test_a_node_without_power(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = cluster.submit(script("--run-dir", str(folder), restarts=3))
    until(lambda: checkpoints(folder), "a checkpoint")
    there = workers(folder)[1]
    cluster.kill_node("n2")
    there.kill()
    until(lambda: not workers(folder), "the other worker's end", 30)
    until(lambda: cluster.state(job) == "PENDING" or cluster.field(job, "Restarts") == "1", "SLURM to requeue the job")
    cluster.start_node("n2")
    check(cluster, job, folder, undisturbed)


def test_an_array(cluster: Cluster, tmp_path: Path) -> None:
    folders = [tmp_path / f"seed {index}" for index in range(2)]
    more = [
        "--seed",
        "$SLURM_ARRAY_TASK_ID",
        "--run-dir",
        str(tmp_path / "seed ${SLURM_ARRAY_TASK_ID}"),
        "--updates",
        "20",
    ]
    job = cluster.submit(script(*more, array="0-1"))
    for index, folder in enumerate(folders):
        until((folder / "result.json").exists, f"result {index}")
        subprocess.run(
            [
                *TRAIN,
                "--quiet",
                "--layout",
                "1x1",
                "--updates",
                "20",
                "--seed",
                str(index),
                "--run-dir",
                f"{folder} alone",
            ],
            check=True,
            timeout=120,
        )
        assert differences(folder, Path(f"{folder} alone")) == []
    cluster.wait(f"{job}_1", "COMPLETED")


def test_scancel(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = cluster.submit(script("--run-dir", str(folder), "--updates", "100000", restarts=3))
    until(lambda: checkpoints(folder), "a checkpoint")
    cluster.run("scancel", job)
    cluster.wait(job, "CANCELLED", seconds=60)
    until(lambda: not workers(folder), "the end of the workers", 60)
    assert "SIGTERM: stopped after update" in said(cluster, job)
    assert "to be" not in said(cluster, job)
    assert cluster.field(job, "Restarts") == "0"


def test_a_job_that_restores_a_cancelled_one(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = cluster.submit(script("--run-dir", str(folder)))
    until(lambda: checkpoints(folder), "a checkpoint")
    cluster.run("scancel", job)
    cluster.wait(job, "CANCELLED", seconds=60)
    until(lambda: not workers(folder), "the end of the workers", 60)
    again = [sys.executable, "-m", "conveyor", "restore", str(folder)]
    job = cluster.submit(emit("slurm", again, LaunchPlan(instances=2, threads=1), Wanted(num_hosts=2)))
    check(cluster, job, folder, undisturbed)
    assert "resumed after update" in said(cluster, job)


def test_a_cancelled_job_that_is_queued_again(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = cluster.submit(script("--run-dir", str(folder)))
    until(lambda: checkpoints(folder), "a checkpoint")
    cluster.run("scancel", job)
    cluster.wait(job, "CANCELLED", seconds=60)
    cluster.run("scontrol", "requeue", job)
    until(lambda: cluster.field(job, "Restarts") == "1", "the second start")
    assert check(cluster, job, folder, undisturbed)["restarts"] == 1


def test_the_same_script_again_leaves_a_finished_run_alone(cluster: Cluster, tmp_path: Path) -> None:
    folder, text = tmp_path / "run", script("--run-dir", str(tmp_path / "run"), "--updates", "20")
    for state in ("COMPLETED", "FAILED"):
        job = cluster.submit(text)
        cluster.wait(job, "COMPLETED", "FAILED")
        assert cluster.state(job) == state, said(cluster, job)
    assert said(cluster, job).count("already holds a run") == 1
    assert len(checkpoints(folder)) == 1


def test_srun_without_a_script(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    cluster.run("srun", "--ntasks=2", "--nodes=2", *TRAIN, "--run-dir", str(folder))
    assert differences(folder, undisturbed) == []


def test_srun_notices_a_killed_worker(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = ["srun", "--ntasks=2", "--nodes=2", *TRAIN, "--updates", "100000", "--run-dir", str(folder)]
    job = subprocess.Popen(cluster.here(command), env=cluster.environment, cwd=cluster.folder)
    try:
        kill_a_worker(folder)
        assert job.wait(30) == 128 + signal.SIGKILL
    finally:
        job.kill()
        job.wait()
    assert workers(folder) == []


def test_a_first_host_without_an_address(cluster: Cluster) -> None:
    command = ["srun", "--ntasks=2", "--nodes=2", *TRAIN]
    environment = {**cluster.environment, "MASTER_ADDR": "no.such.host.invalid"}
    done = subprocess.run(
        cluster.here(command), env=environment, cwd=cluster.folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 98, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("srun:")]
    assert [line for line in lines if "no.such.host.invalid has no address" in line] == lines, done.stderr


def test_the_tasks_of_a_node_see_each_others_gpus(cluster: Cluster) -> None:
    plan = LaunchPlan(instances=2, threads=1)
    job = cluster.submit(emit("slurm", ["printenv", "CUDA_VISIBLE_DEVICES"], plan, Wanted(num_hosts=1, gpus=1)))
    cluster.wait(job, "COMPLETED")
    assert said(cluster, job).split() == ["0,1", "0,1"]


SUBMITTED = """
import sys
import submitit


class Job:
    def __call__(self, folder, options):
        import conveyor

        return conveyor.train(run_dir=folder, resume="auto", **options).updates

    def checkpoint(self, *arguments):
        return submitit.helpers.DelayedSubmission(self, *arguments)


executor = submitit.AutoExecutor(sys.argv[1], cluster="slurm", slurm_python=sys.executable)
executor.update_parameters(nodes=2, tasks_per_node=1, cpus_per_task=1, timeout_min=20)
options = dict(
    updates=120, updates_per_epoch=20, accumulation=2, micro_batch_size=4, threads=1, device="cpu", validation=False,
    report=False, tensorboard=False,
)
print(executor.submit(Job(), sys.argv[2], options).results())
"""


def test_a_job_of_submitit(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed")
    done = subprocess.run(
        cluster.here([sys.executable, "-c", SUBMITTED, str(tmp_path / "logs"), str(tmp_path / "run")]),
        env=cluster.environment, cwd=tmp_path, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"[{UPDATES}, {UPDATES}]"
    assert differences(tmp_path / "run", undisturbed) == []
