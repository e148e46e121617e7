"""The server's log: one line for each event, text from a peer escaped, repeated lines counted. No torch here."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator

WINDOW_SECONDS = 60.0
MOST_KINDS = 1000
"""Kinds of lines that are counted at a time; when there are more, all are summed up early."""


class LogLines(logging.Handler):
    """Writes the first record of a kind at once and counts the others of the next `window` seconds into one line.

    A kind is the text of our own records, and the template of a library's (its arguments are addresses and the like):
    each malformed request makes one, as fast as it can be sent.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        window: float = WINDOW_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._write, self._window, self._clock = write, window, clock
        self._kinds: dict[str, list[float]] = {}
        """Kind -> [when its window ends, further records so far]."""

    def emit(self, record: logging.LogRecord) -> None:
        self.sum_up()
        text = self.format(record)
        kind = text if record.name.startswith("conveyor") and not record.exc_info else f"{record.name}: {record.msg}"
        counted = self._kinds.get(kind)
        if counted is not None:
            counted[1] += 1
            return
        if len(self._kinds) >= MOST_KINDS:
            self.sum_up(early=True)
        self._kinds[kind] = [self._clock() + self._window, 0]
        self._write(text + "\n")

    def format(self, record: logging.LogRecord) -> str:
        """The message on one line, escaped; lines of a traceback are indented, so that none looks like a message."""
        first, *rest = [record.getMessage(), *self._trace(record)]
        return "\n".join([escaped(first), *(f"    {escaped(line)}" for line in rest)])

    def sum_up(self, early: bool = False) -> None:
        """Say how often the lines of windows that have ended were repeated."""
        now = self._clock()
        for kind, (ends, more) in list(self._kinds.items()):
            if early or now >= ends:
                del self._kinds[kind]
                if more:
                    self._write(f"{more:.0f} more within {self._window:g} s: {escaped(kind)[:200]}\n")

    @staticmethod
    def _trace(record: logging.LogRecord) -> list[str]:
        if not record.exc_info:
            return []
        return logging.Formatter().formatException(record.exc_info).splitlines()


def escaped(text: str) -> str:
    """`text` on one line without control characters: a newline becomes the two characters \\n, an escape \\x1b."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


@contextlib.contextmanager
def to_standard_error() -> Iterator[LogLines]:
    """All logging of this process goes through `LogLines` while the body runs."""

    def write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    root = logging.getLogger()
    before, lines = root.handlers[:], LogLines(write)
    root.handlers[:] = [lines]
    try:
        yield lines
    finally:
        lines.sum_up(early=True)
        root.handlers[:] = before
