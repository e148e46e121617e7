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
from typing import TYPE_CHECKING, Any, TypeVar

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


def say(line: str) -> None:
    """Print a line to standard output without breaking a live bar; on a terminal it is folded between words."""
    if not sys.stdout.isatty():
        print(line, flush=True)
        return
    if "  " in line:  # of figures set apart by two spaces a name stays with its value
        line = re.sub(r"(?<! ) (?! )", "\0", line)
    folded = textwrap.fill(
        line, shutil.get_terminal_size().columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    ).replace("\0", " ")
    if not _display.print_above(folded):
        print(folded, flush=True)


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
