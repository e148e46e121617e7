"""Ctrl-C while libraries are imported: some of them catch every exception there, so that it would be lost."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from conveyor.errors import INTERRUPTED


@contextlib.contextmanager
def heard_in_imports() -> Iterator[None]:
    """Ctrl-C ends the process at once during an import; at any other time it is KeyboardInterrupt, as ever.

    A handler that somebody else put there is left alone.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"conveyor: interrupted\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt
