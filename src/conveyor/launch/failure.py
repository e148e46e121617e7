"""Which worker failed first, and with which error.

A worker that dies takes its peers down: they only see a closed connection. So each worker writes its error down, marked
as its own or as the loss of a peer, and exits with a code that says which; the launcher shows the first own error.

| exit code | meaning | job starts again |
|---|---|---|
| 2 | a mistake the user can correct | no |
| 1 | any other Python error | no: it would happen again |
| 75 | a peer is gone | yes |
| 76 | handed over: a launcher of the job is starting all workers again | yes, and it is not counted |
| negative | killed by a signal | yes |
| 97, 98 | 1 and 2 among several tasks of srun, whose own exit code is the highest of theirs | no |
"""

import json
import signal
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from conveyor.errors import INTERRUPTED, USER_ERROR, UserError
from conveyor.files import parse_json, write_atomically
from conveyor.world.restarts import StartedAgain

OWN_ERROR = 1
LOST_PEER = 75
HANDED_OVER = 76
ABOVE_PEERS = 96

PEER_PHRASES = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket closed",
    "timed out waiting",
    "application timeout caused pair closure",
    "failed to recv",
    "remote process exited",
    "nccl communicator was aborted",
)


class PeerLostError(RuntimeError):
    """Another worker is gone; raised where the caller, not a launcher, decides what follows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How one worker ended."""

    rank: int
    exit_code: int
    message: str = ""
    trace: str = ""
    when: float = 0.0

    @property
    def is_own(self) -> bool:
        """Whether the worker failed by itself, not because a peer was gone or the launcher ended it."""
        return self.exit_code not in (LOST_PEER, HANDED_OVER, -signal.SIGTERM)

    @property
    def may_restart(self) -> bool:
        """Whether starting again can help."""
        return self.exit_code < 0 or self.exit_code in (LOST_PEER, HANDED_OVER)

    def sentence(self) -> str:
        """One line for the user."""
        if self.exit_code < 0:
            return f"worker {self.rank} was killed by {_signal_name(-self.exit_code)}."
        if self.message:
            prefix = "" if self.exit_code == USER_ERROR else f"worker {self.rank}: "
            return prefix + self.message
        return f"worker {self.rank} ended with exit code {self.exit_code}."


def is_peer_loss(error: BaseException) -> bool:
    """Whether `error`, or what caused it, only follows from the end of another worker."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, UserError):
            return False
        if isinstance(seen, PeerLostError):
            return True
        name, text = type(seen).__name__, str(seen).lower()
        if name in ("DistBackendError", "DistNetworkError", "DistStoreError"):
            return True
        if isinstance(seen, RuntimeError | OSError) and any(phrase in text for phrase in PEER_PHRASES):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def root_cause(error: BaseException) -> BaseException:
    """The error at the bottom of a chain of `raise ... from ...`; a sentence for the user explains what is below it."""
    while error.__cause__ is not None and not isinstance(error, UserError):
        error = error.__cause__
    return error


def exit_code(error: BaseException) -> int:
    """The exit code of a worker that ends with `error`."""
    cause = root_cause(error)
    if isinstance(cause, UserError):
        return USER_ERROR
    if isinstance(cause, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(cause, StartedAgain):
        return HANDED_OVER
    return LOST_PEER if is_peer_loss(error) else OWN_ERROR


def record(error: BaseException, environment: Mapping[str, str]) -> int:
    """Write `error` where the elastic agent looks for it (its own JSON form); returns the exit code to use."""
    code = exit_code(error)
    cause = root_cause(error)
    text = str(cause) if isinstance(cause, UserError) else f"{type(cause).__name__}: {cause}"
    if code == LOST_PEER:
        text = "the connection to another worker was lost."  # what the library says of it stays in the trace
    path = environment.get("TORCHELASTIC_ERROR_FILE", "")
    if path:
        trace = "".join(traceback.format_exception(error))
        extra = {"py_callstack": trace, "timestamp": f"{int(time.time())}", "when": time.time()}
        # The agent reads it whenever another worker ends: half a file would end the job.
        write_atomically(Path(path), json.dumps({"message": {"message": text, "extraInfo": extra}}))
    return code


def in_step(code: int, environment: Mapping[str, str]) -> int:
    """`code` of a worker's own error, above the 75 of its peers if it is one of several tasks of srun."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "")
    several = tasks.isdecimal() and int(tasks) > 1
    return code + ABOVE_PEERS if several and code in (OWN_ERROR, USER_ERROR) else code


def read(rank: int, code: int, error_file: str) -> Failure:
    """What is known of a worker that ended with `code`."""
    try:
        message = parse_json(Path(error_file).read_text(encoding="utf-8"))["message"]
        extra = message["extraInfo"]
        return Failure(
            rank, code, message["message"], extra["py_callstack"], float(extra.get("when", extra["timestamp"]))
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Failure(rank, code)


def first(failures: Iterable[Failure]) -> Failure:
    """The failure to show: the earliest own error; a signal counts before the loss of a peer."""
    return min(
        failures, key=lambda failure: (not failure.is_own, failure.exit_code < 0 and failure.is_own, failure.when)
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
