"""Keeps a run going when an observer cannot write: a disk full for an hour must not cost a week of training."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conveyor.errors import UserError
from conveyor.monitor.observers import Observer
from conveyor.monitor.records import Record

if TYPE_CHECKING:
    from conveyor.monitor.histograms import Histogram

_logger = logging.getLogger(__name__)


class FaultTolerantObserver(Observer):
    """Passes every record to another observer; a failed write is reported once and skipped.

    `start` may fail: then there is no run yet, and the user can choose another folder. A closed terminal or pipe (`|
    head`) still ends the run, as with any command.
    """

    def __init__(self, inner: Observer) -> None:
        self.inner = inner
        self._told = False

    def start(self, spec: dict[str, Any], resumed_at: int = 0) -> None:
        self.inner.start(spec, resumed_at)

    def tick(self, update: int) -> None:
        self._attempt(self.inner.tick, update)

    def log(self, record: Record) -> None:
        self._attempt(self.inner.log, record)

    def validation(self, record: Record) -> None:
        self._attempt(self.inner.validation, record)

    def checkpoint(self, path: Path) -> None:
        self._attempt(self.inner.checkpoint, path)

    def weights(self, update: int, found: "Mapping[str, Histogram]") -> None:
        self._attempt(self.inner.weights, update, found)

    def end(self, record: Record) -> None:
        self._attempt(self.inner.end, record)

    def _attempt(self, act: Callable[..., None], *what: Any) -> None:
        try:
            act(*what)
        except BrokenPipeError:
            raise
        except (OSError, UserError) as problem:
            if not self._told:
                name, lost = type(self.inner).__name__, self.inner.unwritten
                _logger.error("%s cannot write (%s): training goes on, %s", name, problem, lost)
            self._told = True
