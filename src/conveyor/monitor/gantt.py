"""The Gantt chart of workers' busy and idle times: as SVG, and as characters for a terminal."""

import html
from collections.abc import Sequence

from conveyor.monitor import svg
from conveyor.monitor.timeline import IDLE_PHASES, Span, busy_seconds

PHASE_COLOURS = {
    "data": 3, "forward": 0, "backward": 1, "recompute": 4, "reduce": 2, "update": 5, "validate": 6, "checkpoint": 7,
    "send": 7, "loss": 4,
}  # fmt: skip
MAX_SPANS = 600


def one_update(spans: Sequence[Span]) -> list[Span]:
    """The spans of one whole update late in the recording (between the ends of two `update` phases), else the first."""
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
    return svg.drawn(width, bottom + 6, "gantt", label, parts)


def characters(spans: Sequence[Span], width: int = 76) -> list[str]:
    """A line per worker: forward passes as the slot's last digit, backward passes as letters, `=` other, `.` idle."""
    shown = [span for span in one_update(spans) if span["phase"] not in IDLE_PHASES]
    if not shown:
        return []
    origin = min(span["start"] for span in shown)
    scale = width / (max(span["end"] for span in shown) - origin or 1e-9)
    rows = {worker: ["."] * width for worker in sorted({span["worker"] for span in shown})}
    for span in shown:
        slot = max(0, span["slot"])
        letter = {"forward": str(slot % 10), "backward": chr(ord("a") + slot % 26)}.get(span["phase"], "=")
        first = int((span["start"] - origin) * scale + 0.5)
        last = max(first + 1, int((span["end"] - origin) * scale + 0.5))
        rows[span["worker"]][first:last] = letter * (min(last, width) - first)
    return [f"{worker:>4} |{''.join(row)[:width]}|" for worker, row in rows.items()]
