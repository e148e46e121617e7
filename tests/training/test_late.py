"""A signal in the middle of a long update: it is given up within the grace period, and the run goes on as if nothing was."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.exact import differences

TRAIN = [
    sys.executable, "-m", "conveyor", "train", "--updates", "2", "--micro-batch-size", "32", "--accumulation", "40",
    "--updates-per-log", "1", "--updates-per-checkpoint", "1", "--threads", "1", "--layout", "1x1", "--device", "cpu",
    "--no-validation", "--no-report", "--no-tensorboard", "--quiet",
]  # fmt: skip


def test_an_update_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    stopped, alone = tmp_path / "stopped", tmp_path / "alone"
    job = subprocess.Popen(
        [*TRAIN, "--grace", "1", "--checkpoint-at-start", "--run-dir", str(stopped)], stdout=subprocess.PIPE, text=True
    )
    try:
        until = time.monotonic() + 200
        while not (stopped / "checkpoints/0/manifest").exists():
            assert job.poll() is None
            assert time.monotonic() < until, "waited in vain"
            time.sleep(0.01)
        job.send_signal(signal.SIGTERM)
        said, _ = job.communicate(timeout=200)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 128 + signal.SIGTERM
    assert "stopped in update 1, which is given up; saved after update 0" in said
    subprocess.run([*TRAIN, "--resume", "auto", "--run-dir", str(stopped)], check=True, timeout=250)
    subprocess.run([*TRAIN, "--checkpoint-at-start", "--run-dir", str(alone)], check=True, timeout=250)
    assert differences(stopped, alone) == []
