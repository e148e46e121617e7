"""Two machines train together through the launcher, one leaves, for good or to be replaced; the result is that of one.

The machines are network namespaces of the test's own with a cable between them; nothing else is contacted.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exact import differences
from tests.launch.network import ADDRESSES, ip

UPDATES = "100"
TRAIN = [
    "--micro-batch-size", "64", "--accumulation", "16", "--updates", UPDATES, "--updates-per-epoch", "2", "--no-validation",
    "--no-report", "--no-tensorboard", "--quiet", "--learning-rate", "0.01", "--checkpoints-to-keep", UPDATES,
]  # fmt: skip


def host(namespace: str, index: int, folder: Path) -> "subprocess.Popen[bytes]":
    """One machine's share of the job."""
    command = [
        "ip",
        "netns",
        "exec",
        namespace,
        sys.executable,
        "-m",
        "conveyor",
        "launch",
        "--hosts",
        ",".join(ADDRESSES),
    ]
    command += [
        "--host-index",
        str(index),
        "--instances",
        "2",
        "--min-hosts",
        "1",
        "--max-restarts",
        "3",
        "--threads",
        "1",
    ]
    command += [
        "--interface",
        "cable0",
        "--",
        sys.executable,
        "-m",
        "conveyor",
        "train",
        *TRAIN,
        "--run-dir",
        str(folder),
    ]
    return subprocess.Popen(command, start_new_session=True)


def unplug(namespace: str, job: "subprocess.Popen[bytes]") -> None:
    """The cable is pulled: no connection is closed, nobody is told."""
    ip("-n", namespace, "link", "set", "cable0", "down")


def kill(namespace: str, job: "subprocess.Popen[bytes]") -> None:
    """Everything on the machine dies at once."""
    os.killpg(job.pid, signal.SIGKILL)


@pytest.mark.conformance
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("leave", [kill, unplug])
def test_a_machine_leaves_and_the_result_stays(
    namespaces: tuple[str, str], tmp_path: Path, leave: Callable[[str, "subprocess.Popen[bytes]"], None]
) -> None:
    folder = tmp_path / "together"
    jobs = [host(namespace, index, folder) for index, namespace in enumerate(namespaces)]
    try:
        wait_for('"2x1"', folder, jobs[0])
        leave(namespaces[1], jobs[1])
        if leave is kill:
            wait_for('"1x1"', folder, jobs[0])
            jobs.append(host(namespaces[1], 1, folder))
            wait_for('"2x1"', folder, jobs[0])
        assert jobs[0].wait(240) == 0
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
            job.wait(10)
    finished = '"2x1"' if leave is kill else '"1x1"'
    assert finished in (folder / "checkpoints" / UPDATES / "state.json").read_text(), "who finished the run"
    alone = tmp_path / "alone"
    command = [sys.executable, "-m", "conveyor", "train", *TRAIN, "--layout", "1x1", "--run-dir", str(alone)]
    subprocess.run(command, check=True, timeout=600)
    assert differences(folder, alone) == []


def wait_for(layout: str, folder: Path, job: "subprocess.Popen[bytes]") -> None:
    """Until the newest checkpoint was made on `layout`."""
    until = time.monotonic() + 120
    while layout not in newest_state(folder):
        assert time.monotonic() < until, f"nothing is computed on {layout}"
        assert job.poll() is None, "the job has ended"
        time.sleep(0.02)


def newest_state(folder: Path) -> str:
    """The state of the newest complete checkpoint as text."""
    numbers = [int(path.parent.name) for path in folder.glob("checkpoints/*/manifest") if path.parent.name.isdigit()]
    return (folder / "checkpoints" / str(max(numbers)) / "state.json").read_text() if numbers else ""
