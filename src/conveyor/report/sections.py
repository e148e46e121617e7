"""What the page of a single run shows: each function turns part of a `Run` into values for the template, or None."""

from typing import Any

from markupsafe import Markup, escape

from conveyor.checkpoint import choice
from conveyor.errors import UserError
from conveyor.layout import deal, parse_layout
from conveyor.monitor import svg
from conveyor.monitor.gantt import PHASE_COLOURS
from conveyor.monitor.gantt import gantt as draw_gantt
from conveyor.monitor.records import readable_rate, readable_time
from conveyor.options import specs
from conveyor.options.coerce import to_plain
from conveyor.options.units import many
from conveyor.report import cells, images, pictures
from conveyor.report.inputs import Calibration, Confusion, Row, Run
from conveyor.report.verdict import verdict

PHASE_NAMES = {
    "data": "waiting for data", "wait": "waiting for other stages", "reduce": "gradient exchange", "update": "optimiser", "validate": "validation",
    "checkpoint": "checkpoints", "start": "start-up",
}  # fmt: skip

SHOWN_CLASSES = 12
"""Rows of the table of classes; the others are folded away."""
MOST_CLASSES, MOST_LABELS = 100, 1000


def of_run(run: Run, image_budget: int, checkpoint: str | None = None) -> dict[str, Any]:
    """The template's values for one run."""
    spec = run.spec
    made_of = [str(spec.get(key) or run.options.get(key) or "") for key in ("model", "data")]
    state = "running" if run.running else str(run.result.get("reason", "")) or "unfinished"
    return {
        "title": run.name,
        "subtitle": " · ".join([part for part in made_of if part] + [state]),
        "verdict": verdict(run),
        "tiles": tiles(run, checkpoint),
        "charts": charts(run),
        "time_split": time_split(run),
        "layout": layout(run),
        "gantt": gantt(run),
        "classes": classes(run.confusion) or labels(run.labels),
        "calibration": calibration(run.calibration),
        "images": images.sheets(run, image_budget),
        "tables": profile_tables(run),
        "options": options(run),
        "command": spec.get("command"),
        "notes": list(spec.get("notes", [])),
    }


def summary(run: Run) -> dict[str, float | None]:
    """The figures by which runs are compared; None where the run has no value."""
    accuracies = run.series("accuracy", of_validation=True)
    last = run.metrics[-1] if run.metrics else {}
    rates = [rate for _, rate in run.series("images_per_second")]
    counted = rates[1:] or rates

    def of(source: dict[str, Any], key: str) -> float | None:
        value = source.get(key)
        return float(value) if isinstance(value, int | float) else None

    best = max((accuracy for _, accuracy in accuracies), default=None)
    return {
        "best": best if best is not None else of(run.result, "best_accuracy"),
        "best_epoch": next((epoch for epoch, accuracy in accuracies if accuracy == best), None),
        "last": accuracies[-1][1] if accuracies else of(run.result, "accuracy"),
        "loss": of(last, "loss"),
        "rate": of(run.result, "images_per_second") or (sum(counted) / len(counted) if counted else None),
        "seconds": of(run.result, "seconds") or of(last, "seconds"),
        "updates": of(run.result, "updates") or of(last, "update"),
        "epochs": of(last, "epoch"),
        "memory": max((value for _, value in run.series("memory_mib")), default=None),
        "peak_share": of(last, "peak_share"),
    }


def accuracy_tile(run: Run, checkpoint: str | None) -> tuple[str, str] | None:
    """(accuracy, name of its checkpoint): of the checkpoint that other commands use by default, and the best one."""
    rows = [row for row in run.validations if isinstance(row.get("accuracy"), float)]
    by_name = {_named(row): row for row in rows}
    try:
        name = choice.find(run.folder, checkpoint).name
    except UserError:
        if checkpoint is not None:
            raise
        name = _named(rows[-1]) if rows else ""  # a run without checkpoints shows what it validated last
    known = summary(run)
    if name not in by_name:
        if checkpoint is not None:
            raise UserError(f"checkpoint {name} of {run.name} was not validated: validate it with conveyor validate")
        return None if known["last"] is None else (f"{known['last']:.2f} %", "last validation")
    shown = by_name[name]
    why = f"{checkpoint or choice.DEFAULT} checkpoint" if not (checkpoint or "").isdecimal() else "checkpoint"
    epoch = f", epoch {shown['epoch']:.4g}" if isinstance(shown.get("epoch"), float) else ""
    note = f"{why} (update {name}{epoch})"
    if known["best"] is not None and known["best"] != shown["accuracy"]:
        note += f"; best {known['best']:.2f} % at epoch {known['best_epoch'] or 0:.4g}"
    return f"{shown['accuracy']:.2f} %", note


def _named(row: Row) -> str:
    name = row.get("name", row.get("update", ""))
    return f"{name:.0f}" if isinstance(name, float) else str(name)


def tiles(run: Run, checkpoint: str | None = None) -> list[dict[str, str]]:
    """The figures at the top."""
    known, spec, made = summary(run), run.spec, []

    def tile(label: str, value: str, note: str = "") -> None:
        made.append({"label": label, "value": value, "note": note})

    accuracy = accuracy_tile(run, checkpoint)
    if accuracy is not None:
        tile("Validation accuracy", *accuracy)
    if precisions := run.series("map", of_validation=True):
        tile("Mean average precision", f"{precisions[-1][1]:.2f} %", "last validation")
    if known["loss"] is not None:
        tile("Training loss", f"{known['loss']:.4f}", "last log point")
    if known["rate"] is not None:
        peak = 100 * (known["peak_share"] or 0.0)
        share = f"{peak:.0f} % of the GEMM rate" if peak >= 1 else "images per second"
        tile("Throughput", f"{readable_rate(known['rate'])} img/s", share)
    total = spec.get("updates_total")
    if run.running and total and known["updates"] is not None:
        tile(
            "Progress", f"{100 * known['updates'] / total:.0f} %", f"{known['updates']:.0f} of {many(total, 'update')}"
        )
    if known["seconds"] is not None:
        done, epochs = round(known["updates"] or 0), round(known["epochs"] or 0, 2)
        updates = f"{many(done, 'update')}, {many(epochs, 'epoch')}" if done else ""
        tile("Time", readable_time(known["seconds"]), updates)
    if "global_batch" in spec:
        parts = f"{spec.get('micro_batch')} x {spec.get('accumulation')} x {spec.get('replicas')}"
        tile("Global batch", str(spec["global_batch"]), f"{parts} (micro, accumulation, replicas)")
    if known["memory"] is not None:
        tile("Peak memory", f"{known['memory']:,.0f} MiB".replace(",", " "), "largest worker")
    return made


def charts(run: Run) -> list[dict[str, Any]]:
    """Learning curves, rates and memory over the epochs; charts without values are left out."""
    wanted = [
        ("Loss", [("training", "loss", False, 0), ("validation", "loss", True, 1)], (None, None), svg.compact),
        ("Accuracy", [("training", "accuracy", False, 0), ("validation", "accuracy", True, 1), ("validation, top 5", "accuracy_top5", True, 2), ("validation, mAP", "map", True, 5)], (None, None), svg.percent),
        ("Learning rate", [("learning rate", "lr", False, 4)], (0.0, None), svg.compact),
        ("Throughput in images per second", [("training", "images_per_second", False, 2)], (0.0, None), svg.compact),
        ("Loss scale", [("loss scale", "loss_scale", False, 4)], (0.0, None), svg.compact),
        ("Gradient norm", [("gradient norm", "gradient_norm", False, 5)], (0.0, None), svg.compact),
        ("Memory in MiB", [("largest worker", "memory_mib", False, 7)], (0.0, None), svg.compact),
    ]  # fmt: skip
    drawn = []
    for title, lines, y_range, form in wanted:
        series = [
            svg.Series(name, run.series(column, of_validation=of_validation), colour, dots=of_validation)
            for name, column, of_validation, colour in lines
        ]
        picture = svg.line_chart(series, label=f"{title} over epochs", y_range=y_range, y_format=form, skip_single=True)
        if picture:
            legend = [(one.name, one.colour) for one in series if one.points]
            drawn.append({"title": title, "svg": Markup(picture), "legend": legend if len(legend) > 1 else []})
    return drawn


def notebook(run: Run, line: str) -> str:
    """The run in a notebook: `line` and the curves, in colours that need no style of the page."""
    drawn = "".join(
        f'<figure style="margin:0;width:420px;max-width:100%"><figcaption>{escape(one["title"])}</figcaption>{one["svg"]}</figure>'
        for one in charts(run)[:3]
    )
    style = f".conveyor{{{svg.variables(svg.LIGHT | {'soft': 'currentColor', 'grid': '#8884'})}{svg.RULES}}}"
    return (
        f'<div class="conveyor"><style>{style}</style><p>{escape(line)}</p>'
        f'<div style="display:flex;flex-wrap:wrap;gap:16px">{drawn}</div></div>'
    )


def time_split(run: Run) -> dict[str, Any] | None:
    """Shares of the phases of a run."""
    phases = [(name, seconds) for name, seconds in run.timing.items() if seconds > 0]
    total = sum(seconds for _, seconds in phases)
    if not total:
        return None
    colours = {name: PHASE_COLOURS.get(name, 7) for name, _ in phases}
    bar = svg.stacked_bar(
        [(PHASE_NAMES.get(name, name), seconds, colours[name]) for name, seconds in phases],
        label="Shares of the phases",
    )
    parts = [
        {
            "name": PHASE_NAMES.get(name, name),
            "share": f"{100 * seconds / total:.1f} %",
            "time": readable_time(seconds) if seconds >= 1 else f"{1e3 * seconds:.0f} ms",
            "colour": colours[name],
        }
        for name, seconds in phases
    ]
    return {"bar": Markup(bar), "parts": parts}


def layout(run: Run) -> dict[str, Any] | None:
    """The picture of lanes and stages."""
    spec = run.spec
    try:
        lanes, depth = parse_layout(str(spec.get("layout", "")))
    except UserError:
        return None
    stages, slots = int(spec.get("stages", 1)), int(spec.get("slots", 1))
    span = int(run.options.get("bn_span", 1))
    dealt = deal(slots, int(spec.get("group_slots", span)), lanes, span if spec.get("cuts_spans") else 1)
    picture = pictures.layout_picture(
        lanes=lanes, depth=depth, stages=stages, slots=[dealt.slots_of(lane) for lane in range(lanes)],
        split_points=[str(name) for name in spec.get("split_points", []) if name != "auto"], threads=int(spec.get("threads", 1)),
    )  # fmt: skip
    note = (
        f"{many(spec.get('replicas', 1), 'replica')} x {many(stages, 'stage')} x accumulation {spec.get('accumulation', 1)} = {many(slots, 'slot')} "
        f"of {spec.get('micro_batch', '?')} images per update, on {lanes * depth} worker{'s' if lanes * depth > 1 else ''} "
        f"with {spec.get('threads', 1)} thread{'s' if int(spec.get('threads', 1)) > 1 else ''} each"
    )
    return {"svg": Markup(picture), "note": note}


def gantt(run: Run) -> dict[str, Any] | None:
    """Busy and idle times of all workers."""
    picture = draw_gantt(run.spans)
    if not picture:
        return None
    present = [name for name in PHASE_COLOURS if any(span["phase"] == name for span in run.spans)]
    note = (
        "Measured times of every worker. The numbers are slots; the share at the right is the time a worker was busy."
    )
    return {
        "svg": Markup(picture),
        "note": note,
        "legend": [(PHASE_NAMES.get(name, name), PHASE_COLOURS[name]) for name in present],
    }


def classes(confusion: Confusion | None) -> dict[str, Any] | None:
    """The confusion matrix, precision, recall and F1 of the classes, weakest first, and the most frequent confusions.

    precision = right / predicted as the class, recall = right / its images, F1 = 2 P R / (P + R), support = its images.
    """
    if confusion is None or not confusion.counts:
        return None
    recalls, totals, answers = confusion.recalls(), confusion.totals(), confusion.predicted()
    wrong: dict[int, tuple[int, int]] = {}
    for (truth, predicted), count in confusion.counts.items():
        if truth != predicted and count > wrong.get(truth, (0, 0))[0]:
            wrong[truth] = (count, predicted)
    scores = {}
    for index, recall in enumerate(recalls):
        if recall is not None:
            precision = confusion.counts.get((index, index), 0) / answers[index] if answers[index] else 0.0
            scores[index] = (2 * precision * recall / (precision + recall) if recall else 0.0, precision, recall)
    rows = [
        (
            cells.text(confusion.classes[index]), *(cells.percent(100 * one, 1) for one in (precision, recall, score)),
            cells.count(totals[index]), cells.text(confusion.classes[wrong[index][1]] if index in wrong else ""),
        )
        for index, (score, precision, recall) in sorted(scores.items(), key=lambda item: item[1])
    ]  # fmt: skip
    worst = sorted(((count, pair) for pair, count in confusion.counts.items() if pair[0] != pair[1]), reverse=True)[:8]
    pairs = [
        (cells.text(confusion.classes[truth]), cells.text(confusion.classes[predicted]), cells.count(count))
        for count, (truth, predicted) in worst
    ]
    return {
        "whose": of_weights(confusion.update),
        "matrix": Markup(pictures.confusion_matrix(confusion)),
        "head": [
            ("class", False),
            ("precision", True),
            ("recall", True),
            ("F1", True),
            ("support", True),
            ("taken for", False),
        ],
        "rows": rows[:SHOWN_CLASSES],
        "others": rows[SHOWN_CLASSES:MOST_CLASSES],
        "pair_head": [("true", False), ("taken for", False), ("times", True)],
        "pairs": pairs,
    }


def labels(found: dict[str, Any]) -> dict[str, Any] | None:
    """Of a multi-label model: average precision, precision, recall and F1 of the classes at their thresholds, weakest first.

    Of the classes that an image has, the weakest `MOST_LABELS` are shown. There is no confusion matrix: an image has several classes, and a wrong one replaces no certain other.
    """
    if not found:
        return None
    figures = zip(found["classes"], found["average_precision"], found["thresholds"], found["counts"], strict=True)
    rows = [
        (
            cells.text(name), cells.percent(100 * (average or 0.0), 1),
            *(cells.percent(100 * right / max(1, of), 1) for right, of in ((hits, answers), (hits, images), (2 * hits, answers + images))),
            cells.text(f"{threshold:.3f}"), cells.count(images),
        )
        for name, average, threshold, (images, answers, hits) in sorted(figures, key=lambda one: one[1] or 0.0)
        if images
    ]  # fmt: skip
    weakest = (
        f" The weakest {MOST_LABELS} of {len(rows)} classes; labels.json has all." if len(rows) > MOST_LABELS else ""
    )
    head = [("class", False), ("average precision", True), ("precision", True), ("recall", True), ("F1", True), ("threshold", True), ("images", True)]  # fmt: skip
    return {
        "matrix": None, "pairs": [],
        "whose": f"{of_weights(found['update'])}{weakest} A class is named from its threshold on, which is the best for F1 on these images.",
        "head": head, "rows": rows[:SHOWN_CLASSES], "others": rows[SHOWN_CLASSES:MOST_LABELS],
    }  # fmt: skip


def calibration(found: Calibration | None) -> dict[str, Any] | None:
    """The reliability picture and how the confidences are spread."""
    if found is None or not found.images:
        return None
    filled = [(images, right, confidence) for images, right, confidence in found.bins if images]
    measured = [(100 * confidence / images, 100 * right / images) for images, right, confidence in filled]
    even = svg.Series("as sure as right", [(0.0, 0.0), (100.0, 100.0)], 3, even=True)
    series = [even, svg.Series("measured", measured, 0, dots=True)]
    width = 100 / len(found.bins)
    spread = [((m + 0.5) * width, 100 * images / found.images) for m, (images, _, _) in enumerate(found.bins)]
    reliability = svg.line_chart(
        series, label="Accuracy over confidence", x_label="confidence in %", y_range=(0.0, 100.0), y_format=svg.percent
    )
    shares = svg.line_chart(
        [svg.Series("images", spread, 2, dots=True)], label="Share of the images over confidence",
        x_label="confidence in %", y_range=(0.0, None), y_format=svg.percent,
    )  # fmt: skip
    excess = 100 * found.excess
    tendency = f"on average {abs(excess):.1f} points {'too sure' if excess > 0 else 'not sure enough'}"
    return {
        "note": f"Expected calibration error {100 * found.error:.2f} % ({len(found.bins)} bins), {tendency}. "
        f"{of_weights(found.update)}",
        "charts": [
            {"title": "Accuracy of answers by their confidence", "svg": Markup(reliability), "legend": [(one.name, one.colour) for one in series]},
            {"title": "Share of the images by confidence", "svg": Markup(shares), "legend": []},
        ],
    }  # fmt: skip


def of_weights(update: int | None) -> str:
    """Whose figures they are."""
    return "" if update is None else f"Of the weights after update {update}, the last validated."


def profile_tables(run: Run) -> list[dict[str, Any]]:
    """Tables of the heaviest layers and operators, when the run was profiled."""
    tables: list[dict[str, Any]] = []
    if run.layers:
        tables.append(
            {
                "id": "layers", "title": "Heaviest layers", "svg": None,
                "note": "Forward time and memory that each layer's outputs hold, from the profiled updates.",
                "head": [("layer", False), ("kind", False), ("output", False), ("calls", True), ("forward ms", True), ("share", True), ("output MiB", True), ("peak MiB", True)],
                "rows": [
                    (
                        cells.text(layer["name"]), cells.text(layer["kind"]), cells.text(layer["shape"]), cells.count(layer["calls"]),
                        cells.milliseconds(layer["seconds"]), cells.percent(100 * layer["share"], 1),
                        cells.mebibytes(layer["bytes"]), cells.mebibytes(layer.get("peak_bytes", 0)),
                    )
                    for layer in run.layers[:40]
                ],
            }
        )  # fmt: skip
    if run.operators:
        tables.append(
            {
                "id": "operators", "title": "Heaviest operators", "note": "Own time, without the operators that they call.", "svg": None,
                "head": [("operator", False), ("input shapes", False), ("calls", True), ("own ms", True), ("share", True)],
                "rows": [
                    (
                        cells.text(row["name"]), cells.text(row["shapes"]), cells.count(row["calls"]),
                        cells.milliseconds(row["seconds"]), cells.percent(100 * row["share"], 1),
                    )
                    for row in run.operators[:30]
                ],
            }
        )  # fmt: skip
    return tables


def options(run: Run) -> dict[str, Any] | None:
    """The resolved options; those at their defaults are folded away."""
    if not run.options:
        return None
    changed: list[tuple[cells.Cell, ...]] = []
    others: list[tuple[cells.Cell, ...]] = []
    for name, value in run.options.items():
        known = specs().get(name.replace("-", "_"))
        row = (cells.text(name.replace("_", "-")), cells.text(value), cells.text(known.about.doc if known else ""))
        is_default = known is not None and to_plain(known.default) == value
        (others if is_default else changed).append(row)
    head = [("option", False), ("value", False), ("meaning", False)]
    return {"title": "Options", "head": head, "rows": changed, "others": others, "form": "notes"}
