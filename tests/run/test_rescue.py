"""The run folder is removed under a run: the state is saved beside it, and going on from there changes no bit."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = [
    "train", "--updates", "40", "--micro-batch-size", "4", "--accumulation", "2", "--updates-per-epoch", "2",
    "--no-validation", "--no-report", "--quiet", "--device", "cpu", "--threads", "1",
]  # fmt: skip
CONVEYOR = [sys.executable, "-m", "conveyor"]


@pytest.mark.parametrize("layout", ["1x1", "2x1"])
def test_the_folder_is_removed(layout: str, tmp_path: Path) -> None:
    command = [
        *CONVEYOR,
        *RUN,
        "--updates",
        "100000",
        "--layout",
        layout,
        "--run-dir",
        "run",
        "--lr-schedule",
        "constant",
    ]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as job:
        until = time.monotonic() + 90
        while not list(tmp_path.glob("run/checkpoints/*/manifest")):
            assert time.monotonic() < until
            assert job.poll() is None
            time.sleep(0.05)
        # Taken away in one step: what is removed piece by piece may get new files while it is.
        (tmp_path / "run").rename(tmp_path / "taken")
        said = job.communicate(timeout=60)[1]
    assert job.returncode == 2, said
    (update,) = [one.name for one in (tmp_path / "run-rescued/checkpoints").iterdir()]
    errors = [line for line in said.splitlines() if line.startswith("conveyor: error: ")]
    assert len(errors) == 1
    assert f"its state after update {update} is saved in run-rescued" in errors[0]
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists(), "no half of a folder"
    shutil.rmtree(tmp_path / "taken")
    last = str(int(update) + 2)
    restore = ["restore", "--checkpoint-path", "run-rescued", "--updates", last]
    subprocess.run([*CONVEYOR, *restore], cwd=tmp_path, check=True, timeout=90, stdout=subprocess.DEVNULL)
    calm = [*CONVEYOR, *RUN, "--updates", last, "--layout", layout, "--run-dir", "calm", "--lr-schedule", "constant"]
    subprocess.run(calm, cwd=tmp_path, check=True, timeout=90, stdout=subprocess.DEVNULL)
    for name in ("model.safetensors", "optimizer.safetensors"):
        found, expected = (
            (tmp_path / run / "checkpoints" / last / name).read_bytes() for run in ("run-rescued", "calm")
        )
        assert found == expected
