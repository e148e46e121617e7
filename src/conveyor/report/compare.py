"""What the page that compares several runs shows."""

import bisect
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from conveyor.monitor import svg
from conveyor.monitor.records import readable_rate, readable_time
from conveyor.report import cells
from conveyor.report.inputs import Run
from conveyor.report.sections import summary

NOT_COMPARED = {"run_dir", "wandb_name", "profile_dir"}


def of_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """The template's values for a comparison."""
    return {
        "title": "Comparison of " + (", ".join(names(runs)) if len(runs) <= 3 else f"{len(runs)} runs"),
        "subtitle": f"{len(runs)} runs",
        "comparison": table(runs),
        "charts": charts(runs),
        "options": differences(runs),
    }


def names(runs: Sequence[Run]) -> list[str]:
    """Short distinct names of the runs: the folder's name, with its parents where two are equal."""
    short = [run.name for run in runs]
    return [
        name if short.count(name) == 1 else "/".join(run.folder.parts[-2:])
        for name, run in zip(short, runs, strict=True)
    ]


def table(runs: Sequence[Run]) -> dict[str, Any]:
    rows = []
    for name, run in zip(names(runs), runs, strict=True):
        figures = summary(run)
        rows.append(
            {
                "run": cells.text(name),
                "model": cells.text(run.spec.get("model", "")),
                "best accuracy": cells.percent(figures["best"]),
                "last accuracy": cells.percent(figures["last"]),
                "calibration error": cells.percent(100 * run.calibration.error if run.calibration else None),
                "img/s": cells.known(figures["rate"], readable_rate),
                "time": cells.known(figures["seconds"], readable_time),
                "updates": cells.count(figures["updates"]),
                "global batch": cells.count(run.spec.get("global_batch")),
                "layout": cells.text(run.spec.get("layout", "")),
            }
        )
    words = {"run", "model", "layout"}
    return {"head": [(title, title not in words) for title in rows[0]], "rows": [tuple(row.values()) for row in rows]}


def charts(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One chart per measure, one colour per run."""
    wanted = [
        ("Validation accuracy", "accuracy", True, "epoch", (None, None), svg.percent),
        ("Training loss", "loss", False, "epoch", (None, None), svg.compact),
        ("Validation accuracy over time in seconds", "accuracy", True, "total", (None, None), svg.percent),
        ("Throughput in images per second", "images_per_second", False, "epoch", (0.0, None), svg.compact),
    ]
    drawn = []
    for title, column, of_validation, by, y_range, form in wanted:
        series = [
            svg.Series(
                name,
                _over_time(run) if by == "total" else run.series(column, of_validation=of_validation, by=by),
                index,
                dots=of_validation,
            )
            for index, (name, run) in enumerate(zip(names(runs), runs, strict=True))
        ]
        label = "seconds of training" if by == "total" else "epoch"
        picture = svg.line_chart(series, label=title, x_label=label, y_range=y_range, y_format=form)
        if picture:
            drawn.append(
                {"title": title, "svg": Markup(picture), "legend": [(one.name, one.colour % 8) for one in series]}
            )
    return drawn


def _over_time(run: Run) -> list[tuple[float, float]]:
    """Validation accuracy over the seconds of training: the clock of the log point at or before each validation."""
    clock = run.series("seconds", by="update")
    points = []
    for update, accuracy in run.series("accuracy", of_validation=True, by="update"):
        before = bisect.bisect_right(clock, update, key=lambda point: point[0])
        if before:
            points.append((clock[before - 1][1], accuracy))
    return points


def differences(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Options in which the runs differ."""
    keys = list(dict.fromkeys(key for run in runs for key in run.options))
    rows = [
        (cells.text(key.replace("_", "-")), *(cells.text(run.options.get(key)) for run in runs))
        for key in keys
        if key not in NOT_COMPARED and any(run.options.get(key) != runs[0].options.get(key) for run in runs)
    ]
    if not rows:
        return None
    return {
        "title": "Options that differ",
        "head": [("option", False), *((name, False) for name in names(runs))],
        "rows": rows,
        "others": [],
        "form": "cards",
    }
