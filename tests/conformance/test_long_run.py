"""A run of a week in small: 100,000 updates with kills and restarts. Memory and open files stay flat, the folder stays small.

CONVEYOR_LONG_UPDATES sets the number of updates. A second run, undisturbed, goes beside it: it shows what a single process
holds after as many updates, and its end is what the other one must end in. With CONVEYOR_LONG_FOLDER both runs are in that folder
and a test that was interrupted goes on there; the row of docs/reliability.md says how often each was begun again.
"""

import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from tests.conformance import reliability
from tests.conformance.test_attack_training import kill, newest

from conveyor.checkpoint import store
from conveyor.monitor.csvfile import read_rows

UPDATES = int(os.environ.get("CONVEYOR_LONG_UPDATES", "100000"))
pytestmark = [pytest.mark.conformance, pytest.mark.timeout(max(1200, UPDATES // 20))]
MODEL = """
from torch import nn

def tiny(num_classes: int, **_: object) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes))
"""
PER_LOG, PER_CHECKPOINT, KEPT, KILLS = max(1, UPDATES // 1000), max(1, UPDATES // 100), 3, 5
WORDS = [
    "--micro-batch-size", "4", "--updates", str(UPDATES), "--updates-per-epoch", str(max(1, UPDATES // 20)), "--layout", "1x1",
    "--threads", "1", "--updates-per-log", str(PER_LOG), "--updates-per-checkpoint", str(PER_CHECKPOINT),
    "--checkpoints-to-keep", str(KEPT), "--resume", "auto", "--quiet", "--max-validation-images", "64",
]  # fmt: skip
FLAT_MIB, FLAT_FILES = 8.0, 4
"""What the last quarter of the samples may have above the second quarter; the first one is warm-up."""


@dataclass
class Life:
    """What one process of the run was seen to hold, sample by sample."""

    memory: list[float] = field(default_factory=list)
    files: list[float] = field(default_factory=list)
    threads: list[float] = field(default_factory=list)

    def look(self, process: psutil.Process) -> None:
        try:
            found = process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()
        except psutil.Error:
            return
        if not found[0]:  # it has ended, and nobody has waited for it yet
            return
        for values, value in zip((self.memory, self.files, self.threads), found, strict=True):
            values.append(float(value))


def growth(values: list[float]) -> float:
    """The median of the last quarter minus that of the second one; 0 of a life too short to say."""
    quarter = len(values) // 4
    return (
        statistics.median(values[-quarter:]) - statistics.median(values[quarter : 2 * quarter]) if quarter > 2 else 0.0
    )


def test_a_long_run_stays_flat_and_small(tmp_path: Path) -> None:
    folder = Path(os.environ.get("CONVEYOR_LONG_FOLDER", tmp_path))
    (folder / "tiny.py").write_text(MODEL)
    calm, run = folder / "calm", folder / "run"
    draw, lives, undisturbed = random.Random(0), list[Life](), Life()
    with start(calm) as beside:
        watched = psutil.Process(beside.pid)
        try:
            for number in range(KILLS + 1):
                goal = (number + 1) * UPDATES // (KILLS + 1)
                if newest(run) >= goal:
                    continue
                with start(run) as job:
                    lives.append(Life())
                    process, began = psutil.Process(job.pid), newest(run)

                    def look(process: psutil.Process = process, began: int = began) -> None:
                        if newest(run) > began:  # not while it starts
                            lives[-1].look(process)
                        if newest(calm):
                            undisturbed.look(watched)

                    try:
                        if number < KILLS:
                            wait(lambda goal=goal: newest(run) >= goal, job, look)  # type: ignore[misc]
                            time.sleep(draw.uniform(0.0, 0.5))
                        else:
                            wait(lambda: False, job, look)
                            assert job.returncode == 0, said(run)
                    finally:
                        kill(job)
            wait(lambda: False, beside, lambda: undisturbed.look(watched))
            assert beside.returncode == 0, said(calm)
        finally:
            kill(beside)
    for life in (*lives, undisturbed):
        assert growth(life.memory) <= FLAT_MIB, life.memory
        assert growth(life.files) <= FLAT_FILES, life.files
        assert growth(life.threads) <= 1, life.threads
    same_end(calm, run)
    sizes = bounded(run)
    bounded(calm)
    longest = max(lives, key=lambda life: len(life.memory))
    reliability.write(
        "week",
        f"{UPDATES} updates, killed and restored {begun(run) - 1} times, bit-identical to a run that was begun again {begun(calm) - 1} "
        f"times; memory of the longest lives {growth(longest.memory):+.1f} and {growth(undisturbed.memory):+.1f} MiB, open files "
        f"{growth(longest.files):+.0f} and {growth(undisturbed.files):+.0f}; {sizes}",
    )


def begun(run: Path) -> int:
    """The processes that the run has had."""
    return 1 + (run / "log.txt").read_text().count("resumed after update")


def start(run: Path) -> "subprocess.Popen[bytes]":
    words = ["train", "--model", f"{run.parent / 'tiny.py'}:tiny", *WORDS, "--run-dir", str(run)]
    with run.with_suffix(".txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "conveyor", *words], stdout=log, stderr=log, start_new_session=True, cwd=run.parent
        )


def wait(reached: Callable[[], bool], job: "subprocess.Popen[bytes]", look: Callable[[], None]) -> None:
    """Until it is so, or the job has ended."""
    while job.poll() is None and not reached():
        look()
        time.sleep(0.25)


def said(run: Path) -> str:
    return run.with_suffix(".txt").read_text(errors="replace")[-3000:]


def same_end(calm: Path, run: Path) -> None:
    """Weights, optimiser and the digests of all log points."""
    for name in ("model.safetensors", "optimizer.safetensors"):
        ends = [(folder / store.CHECKPOINTS / str(UPDATES) / name).read_bytes() for folder in (calm, run)]
        assert ends[0] == ends[1], name
    rows = [
        [(row["update"], row["loss"], row["weights"]) for row in read_rows(folder / "metrics.csv")]
        for folder in (calm, run)
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == -(-UPDATES // PER_LOG)


def bounded(run: Path) -> str:
    """The folder holds what was asked for: a row for each log point, KEPT checkpoints and the best, an event file for each life."""
    checkpoints = store.numbered(run)
    assert len(checkpoints) <= KEPT + 1
    left = [path.name for path in (run / store.CHECKPOINTS).iterdir() if path not in checkpoints]
    assert not left, left
    logs = -(-UPDATES // PER_LOG)
    events = list((run / "tensorboard").iterdir())
    assert len(events) <= begun(run)
    sizes = {
        "metrics.csv": (run / "metrics.csv").stat().st_size,
        "log.txt": (run / "log.txt").stat().st_size,
        "event files": sum(path.stat().st_size for path in events),
    }
    assert sizes["metrics.csv"] < 400 * (logs + 1), sizes
    assert sizes["log.txt"] < 200 * (logs + 100), sizes
    assert sizes["event files"] < 1200 * (logs * 1.2 + 100), sizes
    everything = [path for path in run.rglob("*") if path.is_file()]
    fixed = len(everything) - len(events) - 5 * len(checkpoints)  # of these some fifty are pictures for the report
    assert fixed <= 100, sorted(str(path.relative_to(run)) for path in everything)
    assert not [path for path in everything if re.search(r"\.tmp|\.writing", path.name)]
    total = sum(path.stat().st_size for path in everything)
    rows = [f"{name} {size // 1024} KiB" for name, size in sizes.items()]
    return f"{len(everything)} files, {total // 1024} KiB ({', '.join(rows)}; {logs} log points)"
