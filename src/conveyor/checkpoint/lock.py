"""One run at a time in a run folder."""

import fcntl
import os
import socket
from pathlib import Path

from conveyor.errors import UserError
from conveyor.monitor.run_files import LOCK


def is_held(run: Path) -> bool:
    """Whether a run is active in this folder, as far as this machine can find out."""
    try:
        descriptor = os.open(run / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as problem:
        return isinstance(problem, BlockingIOError)
    finally:
        os.close(descriptor)
    return False


class RunLock:
    """An advisory lock on the run folder, held by the open file: the system releases it when the process ends."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._descriptor: int | None = None

    def acquire(self) -> "RunLock":
        """Take the lock; a second run on the folder is refused with the holder's name."""
        try:
            self._run.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._run / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as problem:
            raise UserError(
                f"cannot write to the run folder {self._run} ({problem.strerror}): choose another --run-dir"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            if not isinstance(problem, BlockingIOError):
                raise UserError(
                    f"cannot lock the run folder {self._run} ({problem.strerror}): choose a --run-dir on a file system with locks"
                ) from None
            raise UserError(f"{self._run} is in use by {holder}: wait for it, or choose another --run-dir") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._descriptor = descriptor
        return self

    def stands(self) -> bool:
        """Whether the folder is still the one that was locked; not after it was removed, even if it was made again."""
        if self._descriptor is None:
            return True
        try:
            return os.path.samestat(os.stat(f"{self._run}/{LOCK}"), os.fstat(self._descriptor))  # noqa: PTH116 - each update
        except FileNotFoundError:
            return False
        except OSError:
            # An error of a network disk does not mean that the folder was removed.
            return True

    def release(self) -> None:
        """Release the lock; its file stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "RunLock":
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
