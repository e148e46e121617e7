"""Time to accuracy: what runs of one recipe reached, and how many core-seconds their training took.

Training time is that of the updates. Validation is counted by itself, as the public speed records do.
"""

import re
import statistics
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from conveyor.bench.records import Record, Sample, make_record
from conveyor.errors import UserError
from conveyor.files import read_object
from conveyor.monitor.csvfile import read_rows
from conveyor.monitor.svg import Series, line_chart, percent, standalone

KIND = "time to accuracy"
TITLES = [
    "recipe",
    "runs",
    "accuracy, mean (spread)",
    "core-seconds of training, mean (spread)",
    "of the last validation",
]


def collect(name: str, folders: Sequence[Path]) -> Record:
    """The record of finished runs that differ in nothing but their seeds and folders."""
    runs = [_checked(folder) for folder in folders]
    for folder, run in zip(folders, runs, strict=True):
        if run["command"] != runs[0]["command"]:
            raise UserError(
                f"{folder} is another recipe than {folders[0]}: {run['command']!r} instead of {runs[0]['command']!r}"
            )
    results = {
        "accuracy": Sample("%", tuple(run["validations"][-1][1] for run in runs)),
        "training": Sample("core-s", tuple(run["training_core_seconds"] for run in runs)),
        "validation": Sample("core-s", tuple(run["validation_core_seconds"] for run in runs)),
    }
    return make_record(f"accuracy-{name}", results, kind=KIND, recipe=name, command=runs[0]["command"], runs=runs)


def _checked(folder: Path) -> dict[str, Any]:
    try:
        return _read(folder)
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"{folder} is not the folder of a finished run: {type(error).__name__} {error}") from None


def _read(folder: Path) -> dict[str, Any]:
    """The values of a run for the record; points of its curves are (core-seconds of training, %)."""
    spec, result = read_object(folder / "spec.json"), read_object(folder / "result.json")
    if result["updates"] < spec["updates_total"]:
        raise UserError(f"the run in {folder} ended after {result['updates']} of {spec['updates_total']} updates")
    cores = prod(int(number) for number in spec["layout"].split("x")) * spec["threads"]
    metrics = read_rows(folder / "metrics.csv")
    validations = sorted(read_rows(folder / "validation.csv"), key=lambda row: float(row["update"]))
    if not validations:
        raise UserError(f"the run in {folder} was never validated: run `conveyor validate {folder}` first")
    spent = {float(row["update"]): cores * float(row["seconds"]) for row in metrics}
    return {
        "command": re.sub(r" --(run-dir|seed) \S+", "", re.sub(r"(--data-dir) \S+", r"\1 DIR", spec["command"])),
        "cores": cores,
        "training_core_seconds": cores * result["seconds"],
        "validation_core_seconds": cores * float(validations[-1]["seconds"]),
        # A run with --disable-metrics has no accuracy of its training.
        "training": [(spent[float(row["update"])], float(row["accuracy"])) for row in metrics if row.get("accuracy")],
        "validations": [
            (spent.get(float(row["update"]), 0.0), float(row["accuracy"])) for row in validations
        ],
    }  # fmt: skip


def row(record: Record) -> list[str]:
    """The table's row of a recipe."""
    accuracy, training = record.results["accuracy"], record.results["training"]
    return [
        record.conditions["recipe"],
        str(accuracy.n),
        f"{statistics.mean(accuracy.values):.2f} % ({accuracy.low:.2f}..{accuracy.high:.2f})",
        f"{statistics.mean(training.values):,.0f} ({training.low:,.0f}..{training.high:,.0f})",
        f"{record.results['validation'].median:,.0f}",
    ]


def chart(record: Record) -> str:
    """Accuracy over core-seconds: a grey line of training accuracy and a blue one of validation for each run."""
    series = []
    for run in record.conditions["runs"]:
        series.append(Series("training", [tuple(point) for point in run["training"]], 3))
        series.append(Series("validation", [tuple(point) for point in run["validations"]], 0, dots=True))
    return standalone(
        line_chart(series, label=f"accuracy of {record.conditions['recipe']}", x_label="core-seconds", y_format=percent)
    )
