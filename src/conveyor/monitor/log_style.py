"""Another form of the log lines and CSV columns, for scripts that read a run's output. Styles are added by `conveyor.hooks`."""

import abc
from collections.abc import Sequence
from typing import Any

from conveyor import hooks
from conveyor.monitor.records import Record, number


class LogStyle(abc.ABC):
    """The lines and columns of a program's log. `log`, `validation` and `end` return lines; `*_row` return CSV cells."""

    training_columns: Sequence[str] = ()
    validation_columns: Sequence[str] = ()
    update_column = "iteration"

    def __init__(self) -> None:
        self.updates_per_call = 1
        self.last_validation: float | None = None

    def begin(self, spec: dict[str, Any]) -> None:
        self.updates_per_call = max(1, int(spec.get("updates_per_call") or 1))

    def step(self, record: Record) -> int:
        """Host calls done: the step of programs that count them."""
        return int(number(record, "update")) // self.updates_per_call

    @abc.abstractmethod
    def log(self, record: Record) -> list[str]:
        """The lines of a log point."""

    @abc.abstractmethod
    def validation(self, record: Record) -> list[str]:
        """The lines of a validation."""

    def end(self, record: Record) -> list[str]:
        return []

    @abc.abstractmethod
    def training_row(self, record: Record) -> Record:
        """The row of the training table."""

    def validation_row(self, record: Record) -> Record:
        return {}


def log_style(name: str) -> LogStyle | None:
    """The style named by `--log-style`; None for our own form."""
    found = hooks.find("log style", name)
    return None if found is None else found()
