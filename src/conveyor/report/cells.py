"""Table cells: what is shown, and the number by which the column sorts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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


def known(value: float | None, form: Callable[[float], str]) -> Cell:
    """A number in its form; an empty cell, which sorts before all, where there is none."""
    return Cell("", -1.0) if value is None else Cell(form(value), value)


def count(value: float | None) -> Cell:
    return known(value, lambda number: f"{number:,.0f}".replace(",", " "))


def percent(value: float | None, digits: int = 2) -> Cell:
    return known(value, lambda number: f"{number:.{digits}f} %")


def milliseconds(seconds: float) -> Cell:
    return Cell(f"{1e3 * seconds:.2f}", seconds)


def mebibytes(size: float) -> Cell:
    return Cell(f"{size / 2**20:.1f}", size)
