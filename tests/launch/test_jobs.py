"""Real jobs: the first error is shown within seconds, signals end everyone, a killed worker is replaced."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from conveyor.launch.agent import JobFailedError, run
from conveyor.launch.job import LaunchPlan

FAILS = """
import os, sys, time
from conveyor.errors import UserError
from conveyor.launch.failure import record
if os.environ["RANK"] == "1":
    sys.exit(record(UserError("the cause and the cure"), os.environ))
time.sleep(60)
"""
DIES_ONCE = """
import os, signal, sys, time
from pathlib import Path
count = Path(sys.argv[1]) / ("start" + os.environ["CONVEYOR_STARTS"] + "-" + os.environ["RANK"])
count.write_text(os.environ["OMP_NUM_THREADS"])
if os.environ["CONVEYOR_STARTS"] == "0":
    if os.environ["RANK"] == "1":
        while not (Path(sys.argv[1]) / "start0-0").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""
SLEEPS = """
import os, sys, time
from pathlib import Path
(Path(sys.argv[1]) / os.environ["RANK"]).write_text(str(os.getpid()))
time.sleep(60)
"""


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def test_the_first_own_error_is_shown_and_not_tried_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(JobFailedError, match=r"^the cause and the cure$") as caught:
        run([sys.executable, "-c", FAILS], LaunchPlan(instances=2, max_restarts=3))
    assert caught.value.failure.rank == 1
    assert signal.getsignal(signal.SIGINT) is before, "the caller's handlers are back"
    assert "CONVEYOR_CORES" not in os.environ


def test_a_killed_worker_is_started_again(tmp_path: Path) -> None:
    run([sys.executable, "-c", DIES_ONCE, str(tmp_path)], LaunchPlan(instances=2, max_restarts=1, threads=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["start0-0", "start0-1", "start1-0", "start1-1"]
    assert (tmp_path / "start1-0").read_text() == "1"


def test_without_restarts_the_signal_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobFailedError, match=r"worker 1 was killed by SIGKILL\."):
        run([sys.executable, "-c", DIES_ONCE, str(tmp_path)], LaunchPlan(instances=2))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_all_workers(tmp_path: Path, number: signal.Signals) -> None:
    command = [
        sys.executable,
        "-m",
        "conveyor",
        "launch",
        "--instances",
        "2",
        "--",
        sys.executable,
        "-c",
        SLEEPS,
        str(tmp_path),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as job:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2 and all(path.read_text() for path in tmp_path.iterdir()))
        workers = [int(path.read_text()) for path in tmp_path.iterdir()]
        job.send_signal(number)
        code = job.wait(30)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: not any(psutil.pid_exists(worker) for worker in workers), 10)


TRAIN = [
    "--updates", "24", "--micro-batch-size", "4", "--accumulation", "4", "--no-validation", "--no-report", "--no-tensorboard",
    "--layout", "2x1", "--updates-per-epoch", "4", "--checkpoints-per-epoch", "1", "--quiet",
]  # fmt: skip


def train(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "conveyor", "train", *TRAIN, "--run-dir", str(folder), *more]


def workers_of(job: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    try:
        return [
            one
            for one in psutil.Process(job.pid).children(recursive=True)
            if "conveyor.launch.worker_process" in one.cmdline()
        ]
    except psutil.NoSuchProcess:
        return []


def test_kill_and_interrupt_leave_the_weights_as_they_would_be(tmp_path: Path) -> None:
    """SIGKILL a worker (the job goes on), then SIGINT (it saves and leaves), then resume: bit-identical weights."""
    subprocess.run(train(tmp_path / "calm"), check=True, timeout=120)
    folder = tmp_path / "accident"
    with subprocess.Popen(train(folder)) as job:
        wait_for(lambda: (folder / "checkpoints" / "4" / "manifest").exists())
        first = workers_of(job)
        assert len(first) == 2
        first[1].kill()
        wait_for(lambda: len(workers_of(job)) == 2 and not set(first) & set(workers_of(job)))
        second = workers_of(job)
        # Two updates later it is in the middle of an epoch, most likely; any moment must do.
        threading.Event().wait(1.0)
        job.send_signal(signal.SIGINT)
        code = job.wait(60)
    assert code in (0, 130), "interrupted, or already at the end"
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in second)
    subprocess.run(train(folder, "--resume", "auto"), check=True, timeout=120)
    names = ("model.safetensors", "optimizer.safetensors")
    for name in names:
        calm, accident = ((tmp_path / run / "checkpoints" / "24" / name).read_bytes() for run in ("calm", "accident"))
        assert calm == accident, name
