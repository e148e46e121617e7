"""A live bar for any long work: share done, images per second, time left.

Bars go to standard error, and only when it is a terminal. All bars of a process share one display, so that a
validation inside training shows as a second line. rich is imported when the first bar is drawn.
"""

import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from conveyor.monitor.records import readable_rate, readable_time

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")
R = TypeVar("R")
_AT_ONCE = 1024


class Bar:
    """What `track` yields; this one draws nothing."""

    def advance(self, amount: float = 1) -> None:
        """Go on by `amount` units."""

    def reach(self, done: float, note: str = "") -> None:
        """Set the units done so far; `note` is the text after the bar."""


class _LiveBar(Bar):
    def __init__(self, progress: "Progress", task: "TaskID") -> None:
        self._progress, self._task = progress, task

    def advance(self, amount: float = 1) -> None:
        self._progress.update(self._task, advance=amount)

    def reach(self, done: float, note: str = "") -> None:
        self._progress.update(self._task, completed=done, note=note)


class _Display:
    """The one live display of this process, started with the first bar and stopped with the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._bars = 0

    def open(self, total: float | None, label: str, unit: str) -> tuple["Progress", "TaskID"]:
        with self._lock:
            if self._progress is None:
                self._progress = _make_progress()
                self._progress.start()
            self._bars += 1
            task = self._progress.add_task(label, total=total, unit=unit, note="")
            return self._progress, task

    def close(self, task: "TaskID") -> None:
        with self._lock:
            assert self._progress is not None
            self._progress.remove_task(task)
            self._bars -= 1
            if self._bars == 0:
                self._progress.stop()
                self._progress = None

    def print_above(self, line: str) -> bool:
        """Print a line above the bars; False when there is none and the caller must print itself."""
        with self._lock:
            if self._progress is None:
                return False
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
            return True


_display = _Display()


@contextmanager
def track(total: float | None, label: str, unit: str = "img", *, quiet: bool = False) -> Iterator[Bar]:
    """A bar over `total` units (None: unknown) for the time of the `with` block.

    >>> with track(50_000, "Validate") as bar:
    ...     bar.advance(32)

    Draws nothing with `quiet` or when standard error is not a terminal. Only the main worker should ask for one.
    """
    if quiet or not sys.stderr.isatty():
        yield Bar()
        return
    progress, task = _display.open(total, label, unit)
    try:
        yield _LiveBar(progress, task)
    finally:
        _display.close(task)


def mapped(work: Callable[[T], R], items: Sequence[T], label: str, *, threads: int, unit: str = "img") -> Iterator[R]:
    """`work` of each item in order, several at a time, under a bar; a thousand items are handed out at once."""
    with ThreadPoolExecutor(threads) as pool, track(len(items), label, unit) as bar:
        for first in range(0, len(items), _AT_ONCE):
            for found in pool.map(work, items[first : first + _AT_ONCE]):
                bar.advance()
                yield found


def printable(line: str) -> str:
    """`line` with control characters as escapes: those in the names of files would move the cursor or begin a line."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)


def say(line: str, *, stream: TextIO | None = None, whole: bool = False) -> None:
    """Print a line, folded, to `stream` (default: standard output) without breaking a live bar.

    A row of a table, a command to copy and a line that programs read stay `whole`.
    """
    stream = stream or sys.stdout
    shown = line if whole else folded(line)
    if not (stream.isatty() and _display.print_above(shown)):
        print(shown, file=stream, flush=True)


def say_aside(line: str) -> None:
    """`say` on standard error: standard output holds the answers."""
    say(line, stream=sys.stderr)


def folded(line: str) -> str:
    """A line folded between words into those that fit: `$COLUMNS`, the terminal's width, else 80 columns.

    A longer word, such as a path, stays whole. The text after a name (`layout      1x1: ...`) is folded beside it.
    """
    columns = shutil.get_terminal_size().columns
    if len(line) <= columns or "\n" in line:
        return line
    named = re.match(r"\w+ {2,}(?=\S)", line)
    figures = "  " in (line[named.end() :] if named else line)
    if figures:  # set apart by two spaces: a name stays with its value
        line = re.sub(r"(?<! ) (?! )", "\0", line)
    indent = "  " if named is None or figures else " " * named.end()
    lines = textwrap.wrap(line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def _make_progress() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            if task.speed is None or task.finished:
                return Text("")
            left = f"  {readable_time(task.time_remaining)} left" if task.time_remaining is not None else ""
            return Text(f"{readable_rate(task.speed)} {task.fields['unit']}/s{left}", style="dim")

    class Share(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.completed:,.0f}" if task.total is None else f"{task.percentage:3.0f} %")

    columns: list[Any] = [
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=28),
        Share(),
        Rate(),
        TextColumn("{task.fields[note]}", style="cyan", markup=False),
    ]
    return Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
