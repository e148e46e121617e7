"""One run disturbed for half an hour in every way a machine can, on changing layouts: it ends with the bits of the calm one.

CONVEYOR_PUNISH_MINUTES sets the time, CONVEYOR_PUNISH_SEED what is drawn. Without root there is no disk to fill and no cable to
pull, without a compiler no clock to set: the row of docs/reliability.md says what took part.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from tests.conformance import reliability
from tests.conformance.test_attack_training import content, family, kill, newest
from tests.exact import TENSORS, TIMES
from tests.launch.network import ADDRESSES, ip, namespaces
from tests.launch.test_exact_runs import CIFAR10

from conveyor.checkpoint import store
from conveyor.monitor.csvfile import read_rows

__all__ = ["namespaces"]
MINUTES = float(os.environ.get("CONVEYOR_PUNISH_MINUTES", "30"))
SEED = int(os.environ.get("CONVEYOR_PUNISH_SEED", "1"))
pytestmark = [pytest.mark.conformance, pytest.mark.timeout(int(MINUTES * 180) + 900)]
DATA = ["--data", "cifar10", "--data-dir", str(CIFAR10), "--model", "cifar_resnet8"] if CIFAR10.is_dir() else []
TRAIN = [
    *DATA, "--micro-batch-size", "16", "--accumulation", "4", "--stages", "2", "--ema-decay", "0.9", "--lr-schedule", "constant",
    "--learning-rate", "0.01", "--updates-per-log", "10", "--updates-per-checkpoint", "20", "--checkpoints-to-keep", "6",
    "--no-validation", "--no-report", "--no-tensorboard", "--threads", "1", "--device", "cpu", "--resume", "auto",
]  # fmt: skip
LAYOUTS = ("1x1", "2x1", "1x2", "4x1", "2x2")
CLOCK = Path(__file__).with_name("clock_shift.c")
CONVEYOR = [sys.executable, "-m", "conveyor"]


class Run:
    """The run that is disturbed, and what has been done to it."""

    def __init__(self, folder: Path, log: Path, draw: random.Random) -> None:
        self.folder, self.log, self.draw = folder, log, draw
        self.done = Counter[str]()

    def command(self, updates: int, *more: str) -> list[str]:
        return [*CONVEYOR, "train", *TRAIN, "--run-dir", str(self.folder), "--updates", str(updates), *more]

    @contextlib.contextmanager
    def job(self, *command: str, env: Mapping[str, str] | None = None) -> Iterator["subprocess.Popen[bytes]"]:
        with self.log.open("ab") as log:
            job = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **(env or {})}
            )
            try:
                yield job
            finally:
                kill(job)

    def progress(self, job: "subprocess.Popen[bytes]", checkpoints: int = 1, seconds: float = 240.0) -> None:
        """Wait for newer checkpoints than now."""
        for _ in range(checkpoints):
            reached, until = newest(self.folder), time.monotonic() + seconds
            while newest(self.folder) <= reached:
                assert job.poll() is None, f"the job ended with {job.returncode}:\n{self.said()}"
                assert time.monotonic() < until, f"no progress for {seconds} s:\n{self.said()}"
                time.sleep(0.05)

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def workers(job: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    return [one for one in family(job) if "conveyor.launch.worker_process" in " ".join(one.cmdline())]


def some_process(run: Run, job: "subprocess.Popen[bytes]") -> psutil.Process:
    return run.draw.choice(workers(job) or [psutil.Process(job.pid)])


def kill_worker(run: Run, job: "subprocess.Popen[bytes]") -> None:
    several = workers(job)
    if several:
        run.draw.choice(several).kill()
        run.progress(job)
    kill(job)


def kill_job(run: Run, job: "subprocess.Popen[bytes]") -> None:
    kill(job)


def stop_worker(run: Run, job: "subprocess.Popen[bytes]") -> None:
    """A process that is suspended, as by a debugger or a hypervisor, and goes on."""
    one = some_process(run, job)
    one.suspend()
    time.sleep(run.draw.uniform(0.5, 8.0))
    one.resume()
    run.progress(job)


def leave(run: Run, job: "subprocess.Popen[bytes]") -> None:
    job.send_signal(run.draw.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]))
    job.wait(60)


def damage(run: Run, job: "subprocess.Popen[bytes]") -> None:
    """The newest checkpoint gets a wrong byte while nobody runs; the one before it must do."""
    run.progress(job)
    kill(job)
    complete = store.listing(run.folder)
    if len(complete) > 1:
        file = run.draw.choice([path for path in sorted(complete[-1].iterdir()) if path.stat().st_size > 0])
        bytes_ = bytearray(file.read_bytes())
        bytes_[run.draw.randrange(len(bytes_))] ^= 1 << run.draw.randrange(8)
        file.write_bytes(bytes_)


def fill_disk(run: Run, job: "subprocess.Popen[bytes]") -> None:
    filler = run.folder.parent / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"\0" * 65536):
            pass
    time.sleep(run.draw.uniform(1.0, 8.0))
    filler.unlink()
    run.progress(job)


Disturbance = Callable[[Run, "subprocess.Popen[bytes]"], None]


def one_machine(run: Run, disturb: Disturbance) -> None:
    layout = run.draw.choice(LAYOUTS)
    with run.job(*run.command(10**6, "--layout", layout)) as job:
        run.progress(job)
        time.sleep(run.draw.uniform(0.0, 1.0))
        disturb(run, job)
    run.done[disturb.__name__.replace("_", " ")] += 1


def set_clock(run: Run) -> None:
    """The clock on the wall jumps an hour forward, then a day back, while the job runs."""
    library, file = run.log.with_name("clock_shift.so"), run.log.with_name("shift")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(CLOCK)], check=True)
    file.write_bytes(struct.pack("q", 0))
    env = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(file)}
    with run.job(*run.command(10**6, "--layout", run.draw.choice(LAYOUTS)), env=env) as job, file.open("r+b") as shift:
        for seconds in (3600, -86400):
            run.progress(job)
            os.pwrite(shift.fileno(), struct.pack("q", seconds), 0)
        run.progress(job)
    run.done["set clock"] += 1


def two_machines(run: Run, places: tuple[str, str]) -> None:
    """The cable between two machines is pulled and put back."""
    with contextlib.ExitStack() as stack:
        jobs = [
            stack.enter_context(run.job(
                "ip", "netns", "exec", place, *CONVEYOR, "launch", "--hosts", ",".join(ADDRESSES), "--host-index", str(index),
                "--instances", "2", "--min-hosts", "1", "--max-restarts", "9", "--threads", "1", "--interface", "cable0", "--",
                *run.command(10**6),
            ))
            for index, place in enumerate(places)
        ]  # fmt: skip
        run.progress(jobs[0])
        ip("-n", places[1], "link", "set", "cable0", "down")
        time.sleep(run.draw.uniform(1.0, 20.0))
        ip("-n", places[1], "link", "set", "cable0", "up")
        run.progress(jobs[0], checkpoints=2)
    run.done["cut network"] += 1


def test_a_punished_run(tmp_path: Path, namespaces: tuple[str, str]) -> None:
    draw = random.Random(SEED)
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], capture_output=True)
    run = Run(disk / "run", tmp_path / "log.txt", draw)
    disturbances: list[Disturbance] = [kill_worker, kill_job, stop_worker, leave, damage]
    whole: list[Callable[[Run], None]] = [lambda run: two_machines(run, namespaces)]
    if mounted.returncode == 0:
        disturbances.append(fill_disk)
    if shutil.which("cc") is not None:
        whole.append(set_clock)
    try:
        until = time.monotonic() + 60 * MINUTES
        while time.monotonic() < until:
            number = draw.randrange(len(disturbances) + len(whole))
            if number < len(disturbances):
                one_machine(run, disturbances[number])
            else:
                whole[number - len(disturbances)](run)
        end = (newest(run.folder) // 20 + 2) * 20
        calm = tmp_path / "calm"
        for folder, layout in ((run.folder, draw.choice(LAYOUTS)), (calm, "1x1")):
            command = Run(folder, run.log, draw).command(end, "--layout", layout, "--quiet")
            subprocess.run(command, check=True, timeout=3600)
        compared = subprocess.run([*CONVEYOR, "compare", str(run.folder), str(calm)], capture_output=True, text=True)
        different = [
            name
            for name in TENSORS
            if content(run.folder / "checkpoints" / str(end) / name) != content(calm / "checkpoints" / str(end) / name)
        ]
        assert not different, f"{different}: {compared.stdout}"
        assert len(rows(calm)) >= end // 10
        assert rows(run.folder) == rows(calm)
        assert "Traceback" not in run.log.read_text(errors="replace")
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
    made = ", ".join(f"{name} {count}" for name, count in sorted(run.done.items()))
    reliability.write(
        "punisher", f"{MINUTES:g} minutes, {sum(run.done.values())} disturbances ({made}), {end} updates: bit-identical"
    )


def rows(run: Path) -> list[dict[str, str]]:
    """The log points that every run has; one that is told to leave logs once more."""
    found = read_rows(run / "metrics.csv")
    kept = [{key: value for key, value in row.items() if key not in TIMES} for row in found]
    return [row for row in kept if int(row["update"]) % 10 == 0]


def test_the_timeline_of_a_disturbed_run(tmp_path: Path) -> None:
    """What is said and done after a kill, a signal, another layout and a damaged checkpoint, line by line as it is kept."""
    run = Run(tmp_path / "run", tmp_path / "log.txt", random.Random(0))
    common = ["--model", "resnet8", "--data", "digits", "--splits", "layer2.0"]
    with run.job(*run.command(10**6, *common, "--layout", "2x1")) as job:
        run.progress(job)
        max(workers(job), key=lambda one: one.pid).kill()
        run.progress(job)
        job.send_signal(signal.SIGTERM)
        job.wait(60)
    with run.job(*run.command(10**6, *common, "--layout", "1x2")) as job:
        run.progress(job)
        kill(job)
    file = store.listing(run.folder)[-1] / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    end = (newest(run.folder) // 20 + 1) * 20
    with run.job(*run.command(end, *common, "--layout", "1x1")) as job:
        assert job.wait(240) == 0
    kept = Path(__file__).parent / "timelines" / "disturbed_run.txt"
    assert plain(run.log.read_text(), tmp_path) == kept.read_text()


def plain(text: str, place: Path) -> str:
    """Without what differs from run to run: numbers (but not layouts), the folder, log points."""
    lines = [line for line in text.replace(f"{place}{os.sep}", "").splitlines() if not line.startswith("update ")]
    return "".join(re.sub(r"(?<![x\d])\d+(?:[ .,]\d+)*(?![x\d])", "N", line) + "\n" for line in lines)
