"""A lock file: of several processes that want to fetch or build the same thing, one does."""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from conveyor.errors import UserError

log = logging.getLogger(__name__)

_LONGEST_WAIT = 6 * 3600.0


@contextlib.contextmanager
def exclusive(path: Path, longest_wait: float = _LONGEST_WAIT) -> Iterator[None]:
    """Hold the lock file `path`; the operating system frees it when its holder dies."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _cannot_lock(path, error) from None
    try:
        deadline = time.monotonic() + longest_wait
        announced = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if not isinstance(error, BlockingIOError):
                    raise _cannot_lock(path, error) from None
                if time.monotonic() > deadline:
                    raise UserError(
                        f"another process has held {path} for {longest_wait:.0f} s: end it or wait"
                    ) from None
                if not announced:
                    log.info("waiting for another process that holds %s", path)
                    announced = True
                time.sleep(0.1)
        yield
    finally:
        os.close(handle)


def _cannot_lock(path: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot lock {path} ({error.strerror}): name another folder for the data with --data-dir, for caches with the "
        "variable CONVEYOR_CACHE"
    )
