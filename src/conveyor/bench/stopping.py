"""A benchmark that is told to stop also stops the processes that it has started."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stops_cleanly() -> Iterator[None]:
    """In the body of the `with` statement the end of the terminal or a job manager's signal unwinds like Ctrl-C.

    By default these signals kill Python at once and leave commands, servers and other programs running.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _leave) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
