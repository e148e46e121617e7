"""How cost grows: the records of the `scaling` specification as a table, a plot and exponents for each quantity that varies."""

import math
import re
from collections.abc import Iterable, Sequence
from statistics import linear_regression
from typing import NamedTuple

from conveyor.bench.records import Record, Sample
from conveyor.monitor import svg

METRICS = {
    "images_per_second": "images/s",
    "memory_mib": "MiB, largest worker",
    "run_cpu_seconds": "CPU s of the run",
    "run_mib": "MiB",
    "report_kib": "KiB of report.html",
    "checkpoint_kib": "KiB of a checkpoint",
    "start_cpu_seconds": "CPU s to the first update",
    "start_mib": "MiB to the first update",
    "save_cpu_ms": "CPU ms to save",
    "list_cpu_ms": "CPU ms of `conveyor runs`",
    "restore_cpu_ms": "CPU ms of `conveyor restore`",
    "restore_mib": "MiB of it",
    "request_p50_ms": "ms, median",
    "request_p99_ms": "ms, 99 %",
    "request_cpu_ms": "CPU ms of server and engines per request",
    "answered_per_second": "answered/s",
}
"""Metrics of the specification and how they are called."""
ABOUT = (
    "MiB is the peak of the largest worker: of the only process, of one lane, of one stage. CPU s are user and system time of the "
    "process and what it started. No spread: one run. Exponent: the slope e of cost = c x value^e, fitted to the logarithms by "
    "least squares, with its range over the rounds, and between the two largest values alone: a fixed cost bends the line, so the last "
    "is what to expect beyond the table. 1 is linear."
)


class Exponent(NamedTuple):
    """The slope of log(metric) over log(value), by least squares."""

    fitted: float
    """Of the medians."""
    low: float
    high: float
    """Over the rounds, each fitted by itself."""
    rounds: int
    end: float
    """Between the medians at the two largest values."""

    def __str__(self) -> str:
        spread = f" ({self.low:.2f}..{self.high:.2f}, n={self.rounds})" if self.rounds > 1 else ""
        return f"{self.fitted:.2f}{spread}, at the end {self.end:.2f}"


def grouped(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each benchmark that ran with parameters, in the order of these.

    Small and full runs are not comparable in one table: those of the size that was run last are taken.
    """
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda one: one.time, reverse=True):
        name = record.conditions.get("benchmark")
        if name and record.conditions.get("parameters") and metrics([record]):
            members = found.setdefault(name, [])
            if not members or record.conditions.get("small") == members[0].conditions.get("small"):
                members.append(record)
    found = {name: found[name] for name in sorted(found)}
    return {name: sorted(members, key=lambda one: _order(label(one))) for name, members in found.items()}


def metrics(members: Sequence[Record]) -> list[str]:
    """Those of `METRICS` that one of the records has."""
    return [key for key in METRICS if any(key in one.results for one in members)]


def label(record: Record) -> str:
    """The value of what varies, as text."""
    values = [str(value).strip() for value in record.conditions["parameters"].values()]
    return " ".join(value or "none" for value in values)


def _order(text: str) -> tuple[float, str]:
    """Sort key: numbers by size, the rest alphabetically."""
    number = re.match(r"[0-9.]+", text)
    return (float(number[0].rstrip(".")) if number else 0.0, text)


def titles(members: Sequence[Record]) -> list[str]:
    return [axis(members), *(f"{METRICS[key]} (spread)" for key in metrics(members))]


def rows(members: Sequence[Record]) -> list[list[str]]:
    """Value and metrics of each case, and a last row with the exponents where the values are numbers."""
    keys = metrics(members)
    found = [[label(one), *(_cell(one.results.get(key)) for key in keys)] for one in members]
    exponents = [exponent(members, key) for key in keys]
    return [*found, ["exponent", *("-" if one is None else str(one) for one in exponents)]] if any(exponents) else found


def exponent(members: Sequence[Record], key: str) -> Exponent | None:
    """How the metric grows with the value; None of words, or of fewer than three cases."""
    found = [(label(one), one.results[key]) for one in members if key in one.results]
    number = re.compile(r"[0-9]+(\.[0-9]+)?")
    if len(found) < 3 or not all(number.fullmatch(text) and float(text) > 0 and one.low > 0 for text, one in found):
        return None
    values = [math.log(float(text)) for text, _ in found]
    medians = [math.log(one.median) for _, one in found]
    rounds = min(one.n for _, one in found)
    by_round = ([math.log(one.values[number]) for _, one in found] for number in range(rounds))
    slopes = [linear_regression(values, logs).slope for logs in by_round]
    fitted, end = (linear_regression(xs, ys).slope for xs, ys in ((values, medians), (values[-2:], medians[-2:])))
    return Exponent(fitted, min(slopes), max(slopes), rounds, end)


def _cell(sample: Sample | None) -> str:
    if sample is None:
        return "-"
    spread = f" ({sample.low:.4g}..{sample.high:.4g}, n={sample.n})" if sample.n > 1 else ""
    return f"{sample.median:.4g}{spread}"


def axis(members: Sequence[Record]) -> str:
    """What varies."""
    return " and ".join(members[0].conditions["parameters"]).replace("_", " ")


def chart(members: Sequence[Record]) -> str:
    """Each metric over the value, from zero."""
    names = [label(one).removeprefix("--recompute ") for one in members]
    panels = []
    for key in metrics(members):
        title = METRICS[key].replace("`", "")
        points = [(float(x), one.results[key].median) for x, one in enumerate(members) if key in one.results]
        series = [svg.Series(title, points, dots=True)]
        panels.append(
            (title, svg.line_chart(series, label=title, x_label=axis(members), y_range=(0.0, None), x_names=names))
        )
    return svg.standalone(svg.side_by_side([one for one in panels if one[1]], label=axis(members)))
