"""Commands as a user types them: words for a small run, a process of one, waiting for it."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.run.runs import small_options

Command = Callable[..., tuple[int, str, str]]

SMALL = small_options(updates=6, updates_per_checkpoint=2).command()[2:]


def start(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "conveyor", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that a shell runs in the background would hand on that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    assert path.exists(), process.communicate()
