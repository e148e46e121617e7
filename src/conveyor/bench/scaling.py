"""How cost grows: the records of the `scaling` specification as a table and a plot for each quantity that varies."""

import re
from collections.abc import Iterable, Sequence

from conveyor.bench.records import Record, Sample
from conveyor.monitor import svg

RATE, MEMORY = "images_per_second", "memory_mib"
TITLES = ["images/s (spread)", "MiB (spread)"]
ABOUT = "MiB is the peak of the largest worker: of the only process, of one lane, of one stage. No spread: one run."


def grouped(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each benchmark that ran with parameters, in the order of these.

    Small and full runs are not comparable in one table: those of the size that was run last are taken.
    """
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda one: one.time, reverse=True):
        name = record.conditions.get("benchmark")
        if name and record.conditions.get("parameters") and RATE in record.results:
            members = found.setdefault(name, [])
            if not members or record.conditions.get("small") == members[0].conditions.get("small"):
                members.append(record)
    found = {name: found[name] for name in sorted(found)}
    return {name: sorted(members, key=lambda one: _order(label(one))) for name, members in found.items()}


def label(record: Record) -> str:
    """The value of what varies, as text."""
    values = [str(value).strip() for value in record.conditions["parameters"].values()]
    return " ".join(value or "none" for value in values)


def _order(text: str) -> tuple[float, str]:
    """Sort key: numbers by size, the rest alphabetically."""
    number = re.match(r"[0-9.]+", text)
    return (float(number[0].rstrip(".")) if number else 0.0, text)


def rows(members: Sequence[Record]) -> list[list[str]]:
    """Value, images per second and MiB of each case."""
    return [[label(one), *(_cell(one.results.get(key)) for key in (RATE, MEMORY))] for one in members]


def _cell(sample: Sample | None) -> str:
    if sample is None:
        return "-"
    spread = f" ({sample.low:.4g}..{sample.high:.4g}, n={sample.n})" if sample.n > 1 else ""
    return f"{sample.median:.4g}{spread}"


def axis(members: Sequence[Record]) -> str:
    """What varies."""
    return " and ".join(members[0].conditions["parameters"]).replace("_", " ")


def chart(members: Sequence[Record]) -> str:
    """Rate and memory over the value, both from zero."""
    names = [label(one).removeprefix("--recompute ") for one in members]
    panels = []
    for title, key in (("images per second", RATE), ("MiB, largest worker", MEMORY)):
        points = [(float(x), one.results[key].median) for x, one in enumerate(members) if key in one.results]
        series = [svg.Series(title, points, dots=True)]
        panels.append(
            (title, svg.line_chart(series, label=title, x_label=axis(members), y_range=(0.0, None), x_names=names))
        )
    return svg.standalone(svg.side_by_side([one for one in panels if one[1]], label=axis(members)))
