"""What all tests share: a cache of their own, one thread, and small helpers."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from conveyor.cli import main

if TYPE_CHECKING:
    from tests.pipeline.pool import Pool

# No time limit per example (machines are busy), and the same examples in every run.
settings.register_profile("conveyor", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("conveyor")

# What tests start inherits ignored signals. `nohup make test` ignores SIGHUP, `make test &` in a script SIGINT, and our programs
# rightly leave an ignored signal ignored: the tests that send one begin from the defaults.
for number, default in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, default)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user's cache is read or written; lines are not folded."""
    patch = pytest.MonkeyPatch()
    patch.setenv("CONVEYOR_CACHE", str(tmp_path_factory.mktemp("cache")))
    patch.setenv("COLUMNS", "10000")  # sentences stay on one line; tests/commands/test_width.py looks at 80 columns
    for name in ("DATA_DIR", "DATASETS_DIR", "TF_CONFIG"):
        patch.delenv(name, raising=False)
    yield
    patch.undo()


@pytest.fixture
def conveyor(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run one command line in this process: (exit code, standard output, standard error)."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a Python program in a process of its own."""

    def run(code: str, cwd: Path | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, timeout=timeout)

    return run


@pytest.fixture(scope="session")
def pool() -> Iterator["Pool"]:
    """One pool of worker processes for all tests that need several."""
    from tests.pipeline.pool import Pool

    workers = Pool()
    yield workers
    workers.close()
