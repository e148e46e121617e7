"""Temporary folders that the next start removes when a process was killed before it could. No torch here.

Each holds a locked file; the system drops the lock of a process that dies, however it dies, so a folder whose lock can be
had belongs to nobody any more.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PREFIX = "conveyor-scratch-"
LOCK = ".lock"
MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def folder(purpose: str, *, in_memory: bool = False) -> Iterator[Path]:
    """A new folder of mode 0700, removed at the end; those that killed processes of this user left go first.

    With `in_memory` it is in a file system in memory where there is one.
    """
    remove_abandoned()
    where = str(MEMORY) if in_memory and os.access(MEMORY, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-", dir=where))
    try:
        # Locked before it has its name: another process that starts now must not find it free.
        with open(path / f"{LOCK}.new", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            Path(lock.name).rename(path / LOCK)
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove the folders of this user whose process is gone."""
    for path in [*Path(tempfile.gettempdir()).glob(f"{PREFIX}*"), *MEMORY.glob(f"{PREFIX}*")]:
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.lstat().st_uid != os.getuid():
                continue
            # One without a file is being made this moment.
            with open(path / LOCK) as lock:
                if _free(lock):
                    shutil.rmtree(path, ignore_errors=True)


def _free(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
