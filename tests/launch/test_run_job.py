"""A run begins: from a plain script, under mpirun, with what the launcher says."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conveyor.errors import UserError
from conveyor.launch.rank import Place
from conveyor.launch.run_job import machine_of, under_launcher
from conveyor.layout import Machine
from conveyor.options import Options
from conveyor.spec import resolve

RUN = {
    "updates": 2, "micro_batch_size": 4, "accumulation": 2, "validation": False, "tensorboard": False, "quiet": True,
    "report": False, "device": "cpu",
}  # fmt: skip
SCRIPT = """
import json, sys
from conveyor.launch.run_job import start
from conveyor.options import Options

print("main runs once")
result = start(Options.from_mapping(json.loads(sys.argv[1])))
print("updates", result["updates"])
"""


def place(**more: int) -> Place:
    return Place(rank=0, size=2, local_rank=0, local_size=2, address="a", port=1, launcher="torchrun", **more)


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    options = json.dumps({**RUN, "layout": "2x1", "run_dir": str(tmp_path / "run")})
    done = subprocess.run(
        [sys.executable, str(script), options], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count("main runs once") == 1
    assert "updates 2" in done.stdout
    assert json.loads((tmp_path / "run/checkpoints/2/state.json").read_text())["progress"]["layout"] == "2x1"


def open_mpi(rank: int, port: int) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "MASTER_PORT": str(port),
    }  # fmt: skip


def slurm(rank: int, port: int) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": str(rank), "SLURM_JOB_ID": str(port),
        "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node1", "SLURM_STEP_TASKS_PER_NODE": "2", "MASTER_PORT": str(port),
    }  # fmt: skip


def tf_config(rank: int, port: int) -> dict[str, str]:
    workers = [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})}


@pytest.mark.parametrize("launcher", [open_mpi, slurm, tf_config])
def test_workers_of_a_launcher_join(tmp_path: Path, launcher: Callable[[int, int], dict[str, str]]) -> None:
    """Two real processes with what the launcher would set; each finds its place, and one folder is theirs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "conveyor", "train"]
    for name, value in RUN.items():
        flag = name.replace("_", "-")
        command += [f"--{flag}" if value is True else f"--no-{flag}" if value is False else f"--{flag}={value}"]
    workers = []
    for rank in range(2):
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", **launcher(rank, port)}
        workers.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path))
    outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert "run folder" in outputs[0]
    assert outputs[1] == "", "one worker talks"
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "checkpoints/2/state.json").read_text())["progress"]["layout"] == "2x1"
    assert launcher is not slurm or folder.name == f"resnet8-digits-{port}-0", "a job that is queued again finds it"


def test_the_launchers_replicas_win(caplog: pytest.LogCaptureFixture) -> None:
    options = Options().replace(replicas=2)
    assert under_launcher(options, {}) is options
    assert under_launcher(options, {"CONVEYOR_REPLICAS": "2"}) is options
    assert not caplog.records
    assert under_launcher(options, {"CONVEYOR_REPLICAS": "8"}).batch.replicas == 8
    assert "8 replicas" in caplog.text
    with pytest.raises(UserError, match="CONVEYOR_REPLICAS is 'all'"):
        under_launcher(options, {"CONVEYOR_REPLICAS": "all"})


def test_pinned_workers_use_all_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers of two cores each: a pinned one sees two cores and must not halve them again."""
    monkeypatch.setattr(Machine, "here", lambda device: Machine(2))
    options = Options().replace(model="resnet50", data="imagenet", micro_batch_size=8, accumulation=2, device="cpu")
    for environment, threads in [
        ({"CONVEYOR_THREADS": "2"}, 2),
        ({"SLURM_CPUS_PER_TASK": "4"}, 4),
        ({}, 1),
    ]:
        machine = machine_of(options, place(), environment)
        spec = resolve(options, workers=2, machine=machine)
        assert spec.layout.threads == threads
        assert spec.layout_note.endswith("bit-identical to any other layout")


@pytest.mark.parametrize(("size", "local_size", "threads"), [(1, 1, 8), (2, 2, 4), (2, 1, 8), (4, 4, 2), (8, 4, 2)])
def test_the_layout_line_names_threads_that_another_layout_would_not_take(
    monkeypatch: pytest.MonkeyPatch, size: int, local_size: int, threads: int
) -> None:
    """Eight cores on each machine, four groups: by itself a run takes two threads, a launcher's worker its share."""
    monkeypatch.setattr(Machine, "here", lambda device: Machine(8))
    options = Options().replace(model="resnet50", data="imagenet", micro_batch_size=8, accumulation=8, pass_slots="2")
    where = dataclasses.replace(place(), size=size, local_size=local_size)
    machine = machine_of(options.replace(device="cpu"), where, {})
    spec = resolve(options.replace(device="cpu"), workers=size, machine=machine)
    assert spec.layout.threads == threads
    told = "" if threads == 2 else f" with --threads {threads}"
    assert spec.layout_note.endswith(f"bit-identical to any other layout{told}")
