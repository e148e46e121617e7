"""A worker that dies costs at most one update, and the run ends with the bits of an undisturbed one."""

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.exact import differences

WORKER = "conveyor.launch.worker_process"
COMMON = [
    "--accumulation", "4", "--micro-batch-size", "8", "--no-tensorboard", "--no-report", "--quiet", "--device", "cpu",
    "--threads", "1", "--checkpoints-per-epoch", "0", "--updates-per-log", "5",
]  # fmt: skip


def train(folder: Path, layout: str, *more: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "conveyor", "train", "--run-dir", str(folder), "--layout", layout]
    return subprocess.Popen([*command, *COMMON, *more])


def rows(folder: Path) -> int:
    """Log points written so far."""
    try:
        return max(0, (folder / "metrics.csv").read_text().count("\n") - 1)
    except FileNotFoundError:
        return 0


def wait_for_rows(job: "subprocess.Popen[bytes]", folder: Path, after: int) -> None:
    until = time.monotonic() + 120
    while rows(folder) < after:
        assert time.monotonic() < until, "waited in vain"
        assert job.poll() is None, "the job has ended"
        time.sleep(0.02)


def lose_a_worker(
    job: "subprocess.Popen[bytes]", folder: Path, after: int, draw: random.Random, word: str = WORKER
) -> None:
    """Kill one of the workers, whose commands hold `word`, some moment after `after` log points."""
    wait_for_rows(job, folder, after)
    until = time.monotonic() + 120
    time.sleep(draw.random() * 0.3)
    # The workers may just be being started again after the death before.
    while not (workers := living(job, word)):
        assert time.monotonic() < until, "there are no workers"
        assert job.poll() is None, "the job has ended"
        time.sleep(0.02)
    draw.choice(workers).send_signal(signal.SIGKILL)
    # The next death is of a worker that was started again: two deaths at once are one start.
    assert psutil.wait_procs(workers, 60)[1] == []


def living(job: "subprocess.Popen[bytes]", word: str) -> list[psutil.Process]:
    """The processes below `job` whose command holds `word`; one that has ended has no command."""
    found = []
    for one in psutil.Process(job.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found += [one] if word in " ".join(one.cmdline()) else []
    return found


def check(place: Path, layout: str, updates: int, deaths: list[int], seed: int, *more: str) -> None:
    options = ["--updates", str(updates), *more]
    disturbed, undisturbed = place / "disturbed", place / "undisturbed"
    job = train(disturbed, layout, *options, "--max-restarts", str(len(deaths)))
    try:
        draw = random.Random(seed)
        for after in deaths:
            lose_a_worker(job, disturbed, after, draw)
        assert job.wait(240) == 0
    finally:
        if job.poll() is None:
            job.kill()
    assert train(undisturbed, "1x1", *options).wait(240) == 0
    result = json.loads((disturbed / "result.json").read_text())
    assert result["restarts"] == len(deaths)
    assert result["updates_repeated"] <= len(deaths)
    # No checkpoint was asked for: what went on came from memory.
    for folder in (disturbed, undisturbed):
        assert not list(folder.glob("checkpoints/[0-9]*"))
    assert rows(disturbed) == updates // 5
    assert differences(disturbed, undisturbed) == []


@pytest.mark.parametrize(("layout", "more"), [("2x1", ()), ("1x2", ("--stages", "2", "--ema-decay", "0.9"))])
def test_a_death_costs_at_most_one_update(tmp_path: Path, layout: str, more: tuple[str, ...]) -> None:
    check(tmp_path, layout, 60, [3], 1, *more)


@pytest.mark.parametrize("checkpoints", [10, 0])
def test_under_torchrun_the_disk_is_the_only_line(tmp_path: Path, checkpoints: int) -> None:
    """Nobody keeps a folder in memory: the run goes on from its newest checkpoint, or begins anew, and says how much."""
    saved = ["--updates-per-checkpoint", str(checkpoints)] if checkpoints else []
    options = ["--updates", "60", *COMMON, *saved]
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "-m"]
    command = [sys.executable, "-m", *torchrun, "conveyor", "train", "--run-dir", str(disturbed)]
    job = subprocess.Popen([*command, *options])
    try:
        lose_a_worker(job, disturbed, 5, random.Random(2), "--run-dir")
        assert job.wait(240) == 0
    finally:
        if job.poll() is None:
            job.kill()
    assert train(undisturbed, "1x1", *options).wait(240) == 0
    result = json.loads((disturbed / "result.json").read_text())
    assert result["restarts"] == 1
    # The death came after log point 25 at least; what was saved by then is not done again.
    assert result["updates_repeated"] % 5 == 0
    assert result["updates_repeated"] >= (25 if checkpoints == 0 else 0)
    assert rows(disturbed) == 12
    assert differences(disturbed, undisturbed) == []


@pytest.mark.conformance
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("layout", "more"),
    [
        ("2x1", ("--optimizer", "adamw", "--learning-rate", "0.001")),
        ("4x1", ("--precision", "16.16", "--loss-scale", "auto")),
        ("2x2", ("--stages", "2")),
        ("1x4", ("--stages", "4", "--pipeline-schedule", "1f1b", "--ema-decay", "0.9")),
    ],
)
def test_five_deaths(tmp_path: Path, layout: str, more: tuple[str, ...]) -> None:
    check(tmp_path, layout, 400, [4, 12, 30, 31, 60], 5, *more)


@pytest.mark.conformance
@pytest.mark.timeout(600)
def test_two_agents_of_torchrun_meet_anew(tmp_path: Path) -> None:
    """As on two machines: the agent whose worker died counts a restart, the other one, with worker 0, does not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--updates", "60", *COMMON, "--updates-per-checkpoint", "10"]
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    torchrun = [
        "torch.distributed.run",
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--max-restarts",
        "2",
        "--rdzv-backend",
    ]
    torchrun += ["c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "-m", "conveyor", "train", "--run-dir", str(disturbed)]
    agents = [subprocess.Popen([sys.executable, "-m", *torchrun, *options]) for _ in range(2)]
    try:
        wait_for_rows(agents[0], disturbed, 3)
        others = living(agents[0], "--run-dir")
        assert others
        lose_a_worker(agents[1], disturbed, 3, random.Random(4), "--run-dir")
        # torchrun tells nothing to the worker of the other agent.
        assert psutil.wait_procs(others, 30)[1] == []
        assert [agent.wait(300) for agent in agents] == [0, 0]
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.kill()
    assert train(undisturbed, "1x1", *options).wait(240) == 0
    assert json.loads((disturbed / "result.json").read_text())["restarts"] == 1
    assert differences(disturbed, undisturbed) == []
