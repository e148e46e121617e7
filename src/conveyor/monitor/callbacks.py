"""Callbacks of the user: called on the main worker, after updates, with copies of the records.

A callback changes nothing of what the run computes; it may only ask for its end. Random numbers of a run are keyed, so
what a callback draws from a global generator changes nothing either.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from conveyor.errors import UserError
from conveyor.monitor.observers import Observer
from conveyor.monitor.records import Record

METHODS = ("on_log", "on_validation", "on_checkpoint", "on_end")
_logger = logging.getLogger(__name__)


@runtime_checkable
class Callback(Protocol):
    """The methods of a callback; each is optional. `return True` asks for the end of the run, after one more update."""

    def on_log(self, record: dict[str, Any]) -> bool | None:
        """A log point: update, epoch, loss, accuracy, lr, ..."""

    def on_validation(self, record: dict[str, Any]) -> bool | None:
        """A validation: update, epoch, accuracy, loss, ..."""

    def on_checkpoint(self, path: Path) -> bool | None:
        """A checkpoint was written completely."""

    def on_end(self, record: dict[str, Any]) -> None:
        """The run is over: reason, updates, accuracy, best_accuracy, ..."""


def on_every_worker(called: Sequence[Any]) -> list[Any]:
    """Those that are called on all workers, because they say `on_every_worker = True`; checkpoints are worker 0's alone."""
    return [one for one in called if getattr(one, "on_every_worker", False)]


class Callbacks(Observer):
    """Calls the callbacks; one that raises is reported once and not called again, the run goes on."""

    def __init__(self, called: Sequence[Any]) -> None:
        for one in called:
            if not any(callable(getattr(one, method, None)) for method in METHODS):
                raise UserError(f"{type(one).__name__} is no callback: it has none of {', '.join(METHODS)}")
        self._called = list(called)
        self.stop = False

    def log(self, record: Record) -> None:
        self._call("on_log", lambda: dict(record))

    def validation(self, record: Record) -> None:
        self._call("on_validation", lambda: dict(record))

    def checkpoint(self, path: Path) -> None:
        self._call("on_checkpoint", lambda: path)

    def end(self, record: Record) -> None:
        self._call("on_end", lambda: dict(record))

    def _call(self, method: str, what: Callable[[], Any]) -> None:
        for one in list(self._called):
            act = getattr(one, method, None)
            if act is None:
                continue
            try:
                self.stop = act(what()) is True or self.stop
            except Exception as problem:  # the user's code: training goes on
                name = type(one).__name__
                _logger.error("%s.%s failed (%s: %s): not called again", name, method, type(problem).__name__, problem)
                self._called.remove(one)
