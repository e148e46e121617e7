"""Table cells: what is shown, and the number by which the column sorts."""

from dataclasses import dataclass
from typing import Any

from conveyor.monitor.records import readable_rate, readable_time


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    sort: float | None = None


def text(value: Any) -> Cell:
    """Any value as readable text: lists without brackets, nothing for None."""
    if value is None or value == () or value == []:
        return Cell("none")
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, list | tuple):
        return Cell(", ".join(str(item) for item in value))
    if isinstance(value, int | float):
        return Cell(f"{value:g}" if isinstance(value, float) else str(value), float(value))
    return Cell(str(value))


def count(value: float | None) -> Cell:
    return Cell("", -1.0) if value is None else Cell(f"{value:,.0f}".replace(",", " "), value)


def percent(value: float | None, digits: int = 2) -> Cell:
    return Cell("", -1.0) if value is None else Cell(f"{value:.{digits}f} %", value)


def rate(value: float | None) -> Cell:
    return Cell("", -1.0) if value is None else Cell(readable_rate(value), value)


def duration(seconds: float | None) -> Cell:
    return Cell("", -1.0) if seconds is None else Cell(readable_time(seconds), seconds)


def milliseconds(seconds: float) -> Cell:
    return Cell(f"{1e3 * seconds:.2f}", seconds)


def mebibytes(size: float) -> Cell:
    return Cell(f"{size / 2**20:.1f}", size)
