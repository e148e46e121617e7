"""Machines come and go: one starts alone, a second joins, it leaves again, and the run is that of one process."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.exact import differences

from conveyor.options import Options
from conveyor.run import worker
from conveyor.spec import resolve

UPDATES = 4000
"""More than the first machine can do before the second has joined; the end is brought about by a signal."""

RUN = {
    "micro_batch_size": 4, "accumulation": 4, "updates_per_epoch": 4, "validation": False, "report": False,
    "tensorboard": False, "quiet": True, "learning_rate": 0.01, "checkpoints_to_keep": UPDATES, "lr_schedule": "constant",
    "updates_per_log": 10,
}  # fmt: skip


def flags(options: dict[str, object]) -> list[str]:
    named = [
        (f"--{name.replace('_', '-')}", f"--no-{name.replace('_', '-')}", value) for name, value in options.items()
    ]
    return [yes if value is True else no if value is False else f"{yes}={value}" for yes, no, value in named]


def host(index: int, port: int, place: Path, restarts: int = 2, **more: object) -> "subprocess.Popen[bytes]":
    """One machine's share of the job; all machines are addresses of this one."""
    launch = [
        "launch", "--hosts", "127.0.0.1,127.0.0.2", "--host-index", str(index), "--instances", "2", "--min-hosts", "1",
        "--max-restarts", str(restarts), "--threads", "1", "--port", str(port), "--interface", "lo", "--",
    ]  # fmt: skip
    conveyor = [sys.executable, "-m", "conveyor"]
    train = ["train", *flags({**RUN, "updates": UPDATES, **more})]
    return subprocess.Popen([*conveyor, *launch, *conveyor, *train], start_new_session=True, cwd=place)


def layouts(place: Path) -> dict[int, str]:
    """The layout with which each complete checkpoint was made."""
    complete = place.glob("runs/*/checkpoints/*/manifest")
    states = {int(path.parent.name): path.with_name("state.json") for path in complete if path.parent.name.isdigit()}
    return {number: json.loads(path.read_text())["progress"]["layout"] for number, path in sorted(states.items())}


def wait_for(condition: Callable[[], bool], job: "subprocess.Popen[bytes]", seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        assert job.poll() is None, "the job has ended"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def newest(place: Path) -> tuple[int, str]:
    """The number of the newest checkpoint and the layout that made it."""
    made = layouts(place)
    return max(made.items(), default=(0, ""))


def forget_stop(folder: Path, stopped: int, per_checkpoint: int) -> None:
    """Remove what a run saves and logs because it is told to leave: a checkpoint that is none of the regular ones, one row."""
    if stopped % per_checkpoint:
        shutil.rmtree(folder / "checkpoints" / str(stopped))
    if stopped % int(str(RUN["updates_per_log"])):
        table = folder / "metrics.csv"
        first, *rows = table.read_text().splitlines(keepends=True)
        kept = [row for row in rows if row.split(",")[0] != str(stopped)]
        assert first.startswith("update,")
        assert len(kept) == len(rows) - 1
        table.write_text("".join([first, *kept]))


@pytest.mark.conformance
@pytest.mark.timeout(600)
def test_a_newcomer_five_deaths_and_another_layout(tmp_path: Path) -> None:
    """One machine, then a pipeline on two; five workers die one after the other; the rest on two lanes: equal files."""
    draw = random.Random(25)
    port = free_port()
    more = {"stages": 2, "updates_per_epoch": 20, "ema_decay": 0.9}
    jobs = [host(0, port, tmp_path, restarts=6, **more)]
    try:
        wait_for(lambda: newest(tmp_path)[1] == "1x1", jobs[0])
        jobs.append(host(1, port, tmp_path, restarts=6, **more))
        wait_for(lambda: newest(tmp_path)[1] == "1x2", jobs[0])
        for _ in range(5):
            time.sleep(draw.random())
            workers = psutil.Process(draw.choice(jobs).pid).children(recursive=True)
            draw.choice([one for one in workers if "train" in one.cmdline()]).send_signal(signal.SIGKILL)
            before = newest(tmp_path)[0]
            wait_for(lambda before=before: newest(tmp_path)[0] > before + 20, jobs[0])  # type: ignore[misc]
        for job in jobs:
            job.send_signal(signal.SIGTERM)
        for job in jobs:
            job.wait(60)
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
            job.wait(10)
    (folder,) = (tmp_path / "runs").iterdir()
    stopped = newest(tmp_path)[0]
    progress = json.loads((folder / "checkpoints" / str(stopped) / "state.json").read_text())["progress"]
    # A machine that is late after a death joins once more; such a stop and the first one repeat nothing.
    assert progress["restarts"] >= 6, "one machine came, five workers died"
    assert progress["updates_repeated"] <= 5
    last = (stopped // 20 + 2) * 20
    command = [sys.executable, "-m", "conveyor", "train", "--threads=1", "--device=cpu"]
    same = flags({**RUN, **more, "updates": last})
    subprocess.run([*command, *same, "--run-dir", folder, "--resume", "auto", "--layout", "2x1"], check=True)
    alone = tmp_path / "alone"
    subprocess.run([*command, *same, "--run-dir", alone, "--layout", "1x1"], check=True)
    forget_stop(folder, stopped, 20)
    # Nobody knew before where the signal would come: until then the run had a later end.
    assert differences(folder, alone, frozenset({"updates_total"})) == []


@pytest.mark.conformance
def test_a_machine_joins_and_leaves(tmp_path: Path) -> None:
    port = free_port()
    jobs = [host(0, port, tmp_path)]
    try:
        wait_for(lambda: "1x1" in layouts(tmp_path).values(), jobs[0])
        jobs.append(host(1, port, tmp_path))
        wait_for(lambda: "2x1" in layouts(tmp_path).values(), jobs[0])
        os.killpg(jobs[1].pid, signal.SIGKILL)
        together = max(number for number, layout in layouts(tmp_path).items() if layout == "2x1")
        wait_for(lambda: layouts(tmp_path).get(max(layouts(tmp_path), default=0)) == "1x1", jobs[0])
        jobs[0].send_signal(signal.SIGTERM)
        jobs[0].wait(60)
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
            job.wait(10)
    (folder,) = (tmp_path / "runs").iterdir()  # Nobody named one: every start of the job has found the same.
    stopped, layout = newest(tmp_path)
    assert layout == "1x1"
    assert stopped > together
    last, alone = (stopped // 4 + 2) * 4, tmp_path / "alone"
    same = Options().replace(**RUN, updates=last, layout="1x1", threads=1)
    worker.run(resolve(same.replace(run_dir=str(folder), resume="auto")))
    worker.run(resolve(same.replace(run_dir=str(alone))))
    forget_stop(folder, stopped, 4)
    # Nobody knew before where the signal would come: until then the run had a later end.
    assert differences(folder, alone, frozenset({"updates_total"})) == []
