"""Another form of the log lines and CSV columns, for scripts that read a run's output. Styles are added by `conveyor.hooks`."""

from collections.abc import Mapping
from typing import Any

from conveyor import hooks
from conveyor.monitor.records import Record


def columns(text: str) -> Mapping[str, str]:
    """CSV columns and the values that they show: `step iteration=update`; `=NAME?` may be empty."""
    return {column: name or column for column, _, name in (word.partition("=") for word in text.split())}


class Values(dict[str, Any]):
    """The values that lines and columns name; a number that a record does not have is 0."""

    def __missing__(self, key: str) -> float:
        return 0.0


class LogStyle:
    """The lines and columns of a program's log, as templates over `values`; a line without any text is not printed."""

    log_lines = ""
    validation_lines = ""
    end_lines = ""
    training_columns = validation_columns = columns("")
    update_column = "iteration"

    def __init__(self) -> None:
        self.updates_per_call = 1
        self.last_validation: float | None = None

    def begin(self, spec: dict[str, Any]) -> None:
        self.updates_per_call = max(1, int(spec.get("updates_per_call") or 1))

    def values(self, record: Record) -> Values:
        """The numbers of a record, and what follows from them; `step` counts returns to the host."""
        found = Values({key: float(value) for key, value in record.items() if isinstance(value, int | float)})
        update = int(found["update"])
        found.update(update=update, step=update // self.updates_per_call, images=int(found["images"]))
        found["name"] = record.get("name", "")
        if self.last_validation is not None:
            found["last_validation"] = self.last_validation
        return found

    def log(self, record: Record) -> list[str]:
        return self._lines(self.log_lines, record)

    def validation(self, record: Record) -> list[str]:
        self.last_validation = self.values(record)["accuracy"]
        return self._lines(self.validation_lines, record)

    def end(self, record: Record) -> list[str]:
        return self._lines(self.end_lines, record)

    def _lines(self, template: str, record: Record) -> list[str]:
        return [line for line in template.format_map(self.values(record)).splitlines() if line]

    def row(self, columns: Mapping[str, str], record: Record) -> Record:
        """The values of a record under these columns."""
        values = self.values(record)
        named = {column: name.removesuffix("?") for column, name in columns.items()}
        return {column: values[name] for column, name in named.items() if name in values or name == columns[column]}


def log_style(name: str) -> LogStyle | None:
    """The style named by `--log-style`; None for our own form."""
    found = hooks.find("log style", name)
    return None if found is None else found()
