"""A CSV file that a killed run leaves readable and a resumed run continues."""

import csv
import errno
import io
import os
from collections.abc import Sequence
from pathlib import Path

from conveyor.files import write_atomically
from conveyor.monitor.records import Record, Value

_LONGEST_ROW = 1 << 16


class CsvFile:
    """Rows under a header; each row is one `write` to a file opened for appending: a kill truncates only the last line.

    `open(upto)` keeps the rows whose `key` is from 0 to `upto` (a resumed run repeats the later updates, and computes
    the averages at its end, which have no number, again) and drops a truncated last line. A key that is not yet a
    column adds one: the file is rewritten once, older rows get an empty cell. Rows that could not be written (a full disk)
    are written before the next one.
    """

    def __init__(self, path: Path, columns: Sequence[str], key: str) -> None:
        self.path, self.key = path, key
        self.columns = list(columns)
        self._waiting: list[Record] = []

    def open(self, upto: float = 0) -> None:
        rows = [row for row in self.read() if _is_before(row.get(self.key, ""), upto)]
        self._rewrite(rows, [*self.columns, *(name for row in rows[:1] for name in row if name not in self.columns)])

    def read(self) -> list[dict[str, str]]:
        """Every complete row as text; an absent file has none."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        complete = text[: text.rfind("\n") + 1]
        return [
            {name: value for name, value in row.items() if isinstance(name, str) and isinstance(value, str)}
            for row in csv.DictReader(io.StringIO(complete))
        ]

    def last(self) -> dict[str, str]:
        """The last complete row as text, without reading those before it; empty if there is none."""
        try:
            with open(self.path, "rb") as file:
                head = file.readline()
                first = max(len(head), file.seek(0, os.SEEK_END) - _LONGEST_ROW)
                file.seek(first)
                lines = file.read().decode("utf-8", errors="replace").split("\n")[:-1]
        except FileNotFoundError:
            return {}
        if not lines or (first > len(head) and len(lines) < 2):
            return {}
        names, values = (
            next(csv.reader([line])) for line in (head.decode("utf-8", errors="replace").rstrip("\n"), lines[-1])
        )
        return dict(zip(names, values, strict=False))

    def append(self, record: Record) -> None:
        self._waiting.append(record)
        self.flush()

    def flush(self) -> None:
        """Write the rows that wait."""
        if not self._waiting:
            return
        new = dict.fromkeys(name for record in self._waiting for name in record if name not in self.columns)
        if new:
            self._rewrite(self.read(), [*self.columns, *new])
        lines = csv_text([[_cell(record.get(name, "")) for name in self.columns] for record in self._waiting]).encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            if os.write(descriptor, lines) < len(lines):
                # The disk is full: half a row would become one with the next.
                os.ftruncate(descriptor, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        finally:
            os.close(descriptor)
        self._waiting.clear()

    def _rewrite(self, rows: list[dict[str, str]], columns: list[str]) -> None:
        table = [columns, *([row.get(name, "") for name in columns] for row in rows)]
        write_atomically(self.path, csv_text(table).encode())
        self.columns = columns


def csv_text(table: Sequence[Sequence[object]]) -> str:
    """Rows as lines of comma-separated cells, quoted where they must be."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(table)
    return buffer.getvalue()


def _cell(value: Value) -> str:
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def _is_before(text: str, limit: float) -> bool:
    try:
        return 0 <= float(text) <= limit
    except ValueError:
        return False
