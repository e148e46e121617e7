"""The pictures that are not charts: confusion matrix, busy/idle Gantt, layout of lanes and stages."""

import base64
import html
import io
from collections.abc import Sequence

from conveyor.monitor.timeline import IDLE_PHASES, Span, busy_seconds
from conveyor.report.inputs import Confusion

PHASE_COLOURS = {
    "data": 3, "forward": 0, "backward": 1, "recompute": 4, "reduce": 2, "update": 5, "validate": 6, "checkpoint": 7,
    "send": 7, "loss": 4,
}  # fmt: skip
MAX_DRAWN_CLASSES = 24
MAX_SPANS = 600
MAX_LANES = 8


def confusion_matrix(confusion: Confusion) -> str:
    """Rows true, columns predicted, each row in shares of its own class; drawn as cells, or as a picture for many classes."""
    size = len(confusion.classes)
    return _confusion_cells(confusion) if size <= MAX_DRAWN_CLASSES else _confusion_picture(confusion)


def _confusion_cells(confusion: Confusion) -> str:
    size, totals = len(confusion.classes), confusion.totals()
    cell = max(18.0, min(40.0, 400.0 / size))
    longest = max(len(name) for name in confusion.classes)
    margin = min(120.0, 12 + 6.4 * min(longest, 14))
    side = cell * size
    parts = []
    for truth in range(size):
        middle = margin + (truth + 0.5) * cell
        name = html.escape(_cut(confusion.classes[truth], 14))
        parts.append(f'<text class="tick" x="{margin - 6:.1f}" y="{middle + 4:.1f}" text-anchor="end">{name}</text>')
        parts.append(
            f'<text class="tick" transform="translate({middle + 3:.1f} {margin - 6:.1f}) rotate(-60)">{name}</text>'
        )
        for predicted in range(size):
            count = confusion.counts.get((truth, predicted), 0)
            share = count / totals[truth] if totals[truth] else 0.0
            x, y = margin + predicted * cell, margin + truth * cell
            kind = "right" if truth == predicted else "wrong"
            hint = f"{confusion.classes[truth]} seen as {confusion.classes[predicted]}: {count} ({100 * share:.1f} %)"
            strength = 0.06 + 0.94 * share**0.6 if count else 0.03
            parts.append(
                f'<g><title>{html.escape(hint)}</title><rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{cell - 1.5:.1f}" '
                f'height="{cell - 1.5:.1f}" rx="2" fill-opacity="{strength:.2f}"/>'
            )
            if count and cell >= 24:
                inside = "on" if strength > 0.6 else "tick"
                parts.append(
                    f'<text class="{inside}" x="{x + cell / 2 - 0.7:.1f}" y="{y + cell / 2 + 3.5:.1f}" text-anchor="middle">{count}</text>'
                )
            parts.append("</g>")
    full = margin + side + 18
    return (
        f'<svg class="matrix" viewBox="0 0 {full:.0f} {full - 12:.0f}" style="max-width:{full * 1.15:.0f}px" role="img" '
        f'aria-label="Confusion matrix of {size} classes">{"".join(parts)}</svg>'
    )


def _confusion_picture(confusion: Confusion) -> str:
    """A translucent picture, so that it suits a light and a dark page; at most 500 pixels wide."""
    from PIL import Image

    size, totals = len(confusion.classes), confusion.totals()
    factor = -(-size // 500)
    pixels = -(-size // factor)
    sums: dict[tuple[int, int], float] = {}
    for (truth, predicted), count in confusion.counts.items():
        key = predicted // factor, truth // factor
        sums[key] = sums.get(key, 0.0) + count / max(1, totals[truth]) / factor
    image = Image.new("RGBA", (pixels, pixels), (0, 0, 0, 0))
    for (x, y), share in sums.items():
        colour = (74, 124, 196) if x == y else (214, 110, 56)
        image.putpixel((x, y), (*colour, int(40 + 215 * min(1.0, share) ** 0.5)))
    quantised = image.quantize(64, method=Image.Quantize.FASTOCTREE)
    buffer = io.BytesIO()
    quantised.save(buffer, "PNG", optimize=True)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<img class="matrix pixels" alt="Confusion matrix of {size} classes: rows true, columns predicted" '
        f'src="data:image/png;base64,{encoded}">'
    )


def one_update(spans: Sequence[Span]) -> list[Span]:
    """The spans of one whole update late in the recording (between two ends of an `update` phase), else the first ones."""
    if not spans:
        return []
    first_worker = min(span["worker"] for span in spans)
    ends = sorted(span["end"] for span in spans if span["phase"] == "update" and span["worker"] == first_worker)
    if len(ends) >= 2:
        after, until = ends[-2], ends[-1]
        inside = [span for span in spans if span["end"] > after + 1e-9 and span["start"] < until - 1e-9]
        spans = [{**span, "start": max(span["start"], after), "end": min(span["end"], until)} for span in inside]
    return sorted(spans, key=lambda span: span["start"])[:MAX_SPANS]


def gantt(spans: Sequence[Span], *, label: str = "Busy and idle times of the workers") -> str:
    """A row per worker: coloured where it works, empty where it waits, its busy share at the right."""
    shown = one_update(spans)
    if not shown:
        return ""
    origin = min(span["start"] for span in shown)
    length = max(span["end"] for span in shown) - origin or 1e-9
    workers = sorted({span["worker"] for span in shown})
    busy = busy_seconds(shown)
    row, left, width = 26.0, 74.0, 1000.0
    right = 60.0
    scale = (width - left - right) / length
    parts = []
    for number, worker in enumerate(workers):
        y = number * row + 4
        stages = sorted({span["stage"] for span in shown if span["worker"] == worker})
        name = f"worker {worker}"
        parts.append(
            f'<text class="tick" x="{left - 8}" y="{y + 14}" text-anchor="end"><title>stages {stages}</title>{name}</text>'
        )
        parts.append(
            f'<rect class="idle" x="{left}" y="{y}" width="{width - left - right}" height="{row - 7}" rx="2"/>'
        )
        share = 100 * busy.get(worker, 0.0) / length
        parts.append(f'<text class="tick" x="{width - right + 8}" y="{y + 14}">{share:.0f} %</text>')
    for span in shown:
        if span["phase"] in IDLE_PHASES:
            continue
        y = workers.index(span["worker"]) * row + 4
        x, wide = left + (span["start"] - origin) * scale, max(0.6, (span["end"] - span["start"]) * scale - 0.5)
        where = f", slot {span['slot']}" if span["slot"] >= 0 else ""
        hint = f"{span['phase']}, stage {span['stage']}{where}: {1e3 * (span['end'] - span['start']):.2f} ms"
        colour = PHASE_COLOURS.get(span["phase"], 7)
        parts.append(
            f'<g><title>{html.escape(hint)}</title><rect class="fill c{colour}" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{row - 7}" rx="1.5"/>'
        )
        if wide > 14 and span["slot"] >= 0:
            parts.append(
                f'<text class="on" x="{x + wide / 2:.1f}" y="{y + 13.5}" text-anchor="middle">{span["slot"]}</text>'
            )
        parts.append("</g>")
    bottom = len(workers) * row + 20
    parts.append(f'<text class="tick" x="{left}" y="{bottom}">0</text>')
    parts.append(f'<text class="tick" x="{width - right}" y="{bottom}" text-anchor="end">{1e3 * length:.4g} ms</text>')
    return (
        f'<svg class="gantt" viewBox="0 0 {width:g} {bottom + 6:g}" role="img" aria-label="{html.escape(label, quote=True)}">'
        f"{''.join(parts)}</svg>"
    )


def layout_picture(
    *, lanes: int, depth: int, stages: int, slots: Sequence[range], split_points: Sequence[str] = (), threads: int = 1
) -> str:
    """Lanes as rows, their workers as boxes with the stages each runs, the slots that the lane computes at the left."""
    shown = min(lanes, MAX_LANES)
    box, gap, tall, step, left = 150.0, 26.0, 44.0, 58.0, 108.0
    width = max(left + depth * (box + gap) + 12, 320.0)
    parts = []
    bounds = [index * stages // depth for index in range(depth + 1)]
    for lane in range(shown):
        y = lane * step + 6
        parts.append(f'<text class="label" x="0" y="{y + 20}">lane {lane}</text>')
        if lane < len(slots) and len(slots[lane]):
            first, last = slots[lane][0], slots[lane][-1]
            text = f"slot {first}" if first == last else f"slots {first} to {last}"
            parts.append(f'<text class="tick" x="0" y="{y + 35}">{text}</text>')
        for worker in range(depth):
            x = left + worker * (box + gap)
            start, stop = bounds[worker], bounds[worker + 1]
            what = (
                "whole model"
                if stages == 1
                else f"stage {start}"
                if stop - start == 1
                else f"stages {start} to {stop - 1}"
            )
            if worker and worker <= len(split_points) and depth == stages:
                what += f": {_cut(split_points[worker - 1], 13)}"
            parts.append(f'<rect class="box" x="{x}" y="{y}" width="{box}" height="{tall}" rx="6"/>')
            parts.append(f'<text class="label" x="{x + 10}" y="{y + 19}">worker {lane * depth + worker}</text>')
            parts.append(f'<text class="tick" x="{x + 10}" y="{y + 35}">{html.escape(what)}</text>')
            if worker:
                parts.append(f'<path class="arrow" d="M{x - gap + 3} {y + tall / 2} H{x - 5} m-5 -4 l5 4 l-5 4"/>')
        if lane + 1 < shown:
            for worker in range(depth):
                x = left + worker * (box + gap) + box / 2
                parts.append(f'<path class="reduce" d="M{x} {y + tall} V{y + step}"/>')
    height = shown * step + 6
    if lanes > shown:
        parts.append(f'<text class="tick" x="0" y="{height + 10}">and {lanes - shown} more lanes like these</text>')
        height += 18
    note = f"{lanes} lanes of {depth} workers, {threads} threads each"
    return (
        f'<svg class="layout" viewBox="0 0 {width:g} {height:g}" style="max-width:{width * 1.1:.0f}px" role="img" '
        f'aria-label="{note}">{"".join(parts)}</svg>'
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
