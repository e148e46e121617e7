"""Temporary folders: private, gone at the end, and gone after the next start when their process was killed."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conveyor import scratch

HOLDS = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from conveyor import scratch
with scratch.folder("test") as folder:
    (folder / "content").write_text("x")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    foreign = tmp_path / "conveyor-scratch-of-nobody"
    foreign.mkdir()
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        killed, alive = (Path(one.stdout.readline().strip()) for one in holders if one.stdout)
        holders[0].send_signal(signal.SIGKILL)
        holders[0].wait(10)
        assert (killed / "content").exists()
        with scratch.folder("next") as mine:
            assert mine.stat().st_mode & 0o777 == 0o700
            assert not killed.exists()
            assert (alive / "content").exists(), "another process is at work there"
            assert foreign.exists(), "made this moment, or not ours"
        assert not mine.exists()
    finally:
        for one in holders:
            one.kill()
            one.communicate(timeout=10)


def test_a_folder_that_is_being_made_is_not_taken_for_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process looks for abandoned folders just before this one locks its own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lock, looks = fcntl.flock, "from conveyor import scratch; scratch.remove_abandoned()"

    def slowly(*arguments: Any) -> None:
        subprocess.run([sys.executable, "-c", looks], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True)
        lock(*arguments)

    monkeypatch.setattr(scratch.fcntl, "flock", slowly)
    with scratch.folder("slow") as mine:
        assert mine.exists()


def test_a_killed_job_leaves_nothing_behind(tmp_path: Path) -> None:
    """The launcher and its workers are killed; the next job removes their folders."""
    launch = [sys.executable, "-m", "conveyor", "launch", "--instances", "2", "--", sys.executable, "-c"]
    environment = {"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    job = subprocess.Popen([*launch, "import time; time.sleep(60)"], env=environment, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("conveyor-scratch-*/store")):
            assert time.monotonic() < until
            assert job.poll() is None
            time.sleep(0.05)
    finally:
        job.kill()
        job.wait(10)
    assert list(tmp_path.iterdir())
    subprocess.run([*launch, "pass"], env=environment, check=True, timeout=90, stderr=subprocess.DEVNULL)
    assert not list(tmp_path.iterdir())
