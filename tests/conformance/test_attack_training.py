"""SIGKILL at random moments, over layouts, precisions and averages: restored, a run ends with the bits of the undisturbed one."""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.conformance import reliability

from conveyor.checkpoint import folder as one
from conveyor.checkpoint import store

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(3000)]
ROOT = Path(__file__).parents[2]
ONE_PROCESS = {
    "32.32, exponential average": {"ema_decay": 0.9},
    "32.32, no average": {"ema_decay": None},
    "16.32 float16": {"precision": "16.32", "ema_decay": None},
    "16.16 float16, stochastic rounding, exponential average": {"precision": "16.16", "stochastic_rounding": "weights"},
    "16.16 bfloat16": {"precision": "16.16", "half_type": "bfloat16", "loss_scale": "1", "ema_decay": None},
    "32.32, average of checkpoints": {"average_decay": [0.5], "checkpoints_to_keep": None, "ema_decay": None},
}
MANY_PROCESSES = {
    "2x1, 32.32, exponential average": ["--layout", "2x1", "--ema-decay", "0.9"],
    "2x1, 16.16": ["--layout", "2x1", "--precision", "16.16"],
    "1x2, 32.32": ["--layout", "1x2", "--stages", "2"],
    "1x2, 16.32, exponential average": [
        "--layout",
        "1x2",
        "--stages",
        "2",
        "--precision",
        "16.32",
        "--ema-decay",
        "0.9",
    ],
}
KILLS = 10
"""Of each kind: 100 together."""
UPDATES = 30
TRAIN = [
    "--model", "resnet8", "--updates", str(UPDATES), "--micro-batch-size", "4", "--accumulation", "4", "--no-validation",
    "--no-report", "--no-tensorboard", "--updates-per-epoch", "10", "--updates-per-checkpoint", "1",
    "--checkpoints-to-keep", "2", "--threads", "1", "--quiet", "--resume", "auto",
]  # fmt: skip
END_FILES = ("model.safetensors", "optimizer.safetensors", "averages.safetensors")


def test_kills_of_one_process(tmp_path: Path) -> None:
    kills = runs = resumed = 0
    different: list[str] = []
    for number, (name, changes) in enumerate(ONE_PROCESS.items()):
        found = in_one_process(tmp_path / f"one-{number}", changes, number)
        different += [f"{name}: {each}" for each in found["different"]]
        kills, runs, resumed = kills + found["kills"], runs + found["runs"], resumed + found["resumed"]
    assert not different, different[:20]
    assert kills == KILLS * len(ONE_PROCESS)
    assert resumed > kills // 4, "too few lives began from a checkpoint to prove anything"
    reliability.write(
        "kills", f"{kills} kills of {runs} runs of {len(ONE_PROCESS)} kinds, all bit-identical at their end"
    )


def test_kills_of_jobs(tmp_path: Path) -> None:
    kills = runs = 0
    different: list[str] = []
    for number, (name, words) in enumerate(MANY_PROCESSES.items()):
        folder = tmp_path / f"many-{number}"
        subprocess.run(command(folder / "calm", words), check=True, timeout=600, cwd=ROOT)
        draw, made = random.Random(number), 0
        while made < KILLS:
            run = folder / f"run-{runs}"
            new = torment(run, words, KILLS - made, draw)
            made, runs = made + new, runs + 1
            different += [f"{name}: {file}" for file in differences(folder / "calm", run)]
        kills += made
    assert not different, different[:20]
    assert kills == KILLS * len(MANY_PROCESSES)
    reliability.write(
        "jobs",
        f"{kills} kills of {runs} runs of {len(MANY_PROCESSES)} kinds (2x1, 1x2), all bit-identical at their end",
    )


def in_one_process(folder: Path, changes: dict[str, object], seed: int) -> dict[str, object] | dict[str, list[str]]:
    """Lives that are forked from a warm process: the kill comes at any moment of training itself."""
    folder.mkdir()
    words = [sys.executable, "-m", "tests.run.kills", str(folder), str(KILLS), str(seed), json.dumps(changes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def command(run: Path, words: list[str]) -> list[str]:
    return [sys.executable, "-m", "conveyor", "train", *TRAIN, *words, "--run-dir", str(run)]


def torment(run: Path, words: list[str], most: int, draw: random.Random) -> int:
    """Kill the job of `run`, or one of its workers, until it has ended or `most` kills are made; then let it end."""
    kills = 0
    while kills < most:
        with job_of(run, words) as job:
            if not wait_for_progress(run, job):
                return kills
            time.sleep(draw.uniform(0.0, 0.4))
            workers = [each for each in family(job) if "conveyor.launch.worker_process" in " ".join(each.cmdline())]
            if draw.random() < 0.5 and workers:  # the job goes on by itself, until it is killed too
                draw.choice(workers).kill()
                kills += 1
                if kills == most or not wait_for_progress(run, job):
                    break
                time.sleep(draw.uniform(0.0, 0.4))
            kill(job)
            kills += 1
        for path in store.listing(run):
            one.verify(path)
    with job_of(run, words) as job:
        assert job.wait(600) == 0
    return kills


@contextlib.contextmanager
def job_of(run: Path, words: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(command(run, words), cwd=ROOT, start_new_session=True) as job:
        try:
            yield job
        finally:
            kill(job)


def family(job: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    try:
        return psutil.Process(job.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill(job: "subprocess.Popen[bytes]") -> None:
    """SIGKILL for the job and all its processes."""
    everybody = [*family(job)]
    if job.poll() is None:
        job.kill()
    for each in everybody:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(everybody, timeout=30)
    job.wait(30)


def wait_for_progress(run: Path, job: "subprocess.Popen[bytes]") -> bool:
    """Until there is a newer checkpoint than now; False when the run has ended well instead."""
    reached, end = newest(run), time.monotonic() + 200
    while newest(run) <= reached:
        if job.poll() is not None:
            assert job.returncode == 0, f"the run failed with {job.returncode}"
            return False
        assert time.monotonic() < end, "no progress"
        time.sleep(0.02)
    return True


def newest(run: Path) -> int:
    return max((int(path.name) for path in store.numbered(run)), default=0)


def differences(calm: Path, run: Path) -> list[str]:
    ends = [path / store.CHECKPOINTS / str(UPDATES) for path in (calm, run)]
    return [name for name in END_FILES if content(ends[0] / name) != content(ends[1] / name)]


def content(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""
