"""Plots of the benchmark page as plain SVG that follows the reader's colour scheme."""

from collections.abc import Sequence
from html import escape

STYLE = (
    "<style>text{fill:#333}.axis{stroke:#999}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.axis{stroke:#777}}</style>"
)


def _open(width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" '
        f'font-size="11">{STYLE}'
    )


def bars(rows: Sequence[tuple[str, str, float]], ours: str) -> str:
    """Horizontal bars of (group, program, value); `ours` is drawn in colour."""
    height, width, left = 18, 760, 330
    scale = (width - left - 60) / max([1.0, *(value for _, _, value in rows)])
    lines = [_open(width, height * (len(rows) + 1))]
    previous = ""
    for index, (group, program, value) in enumerate(rows):
        y = index * height
        colour = "#2a7de1" if program == ours else "#9aa5b1"
        title, previous = (group if group != previous else ""), group
        lines.append(f'<text x="0" y="{y + 12}">{escape(title)}</text>')
        lines.append(f'<text x="{left - 6}" y="{y + 12}" text-anchor="end">{escape(program)}</text>')
        lines.append(
            f'<rect x="{left}" y="{y + 2}" width="{value * scale:.1f}" height="{height - 5}" fill="{colour}"/>'
        )
        lines.append(f'<text x="{left + value * scale + 4:.1f}" y="{y + 12}">{value:.2f}</text>')
    return "\n".join([*lines, "</svg>"])


def panels(labels: Sequence[str], series: Sequence[tuple[str, Sequence[float | None]]], axis: str) -> str:
    """One panel for each series over the same labels, side by side; every panel starts at zero. None leaves a gap."""
    width, height, left, bottom, top = 300, 170, 46, 34, 22
    lines = [_open(width * max(1, len(series)), height)]
    for number, (title, values) in enumerate(series):
        x0 = number * width
        known = [value for value in values if value is not None]
        highest = max([*known, 1e-9])
        step = (width - left - 20) / max(1, len(labels) - 1)
        lines.append(f'<text x="{x0 + left}" y="13" font-weight="bold">{escape(title)}</text>')
        for share in (0.0, 0.5, 1.0):
            y = height - bottom - share * (height - bottom - top)
            lines.append(
                f'<line class="axis" x1="{x0 + left}" x2="{x0 + width - 12}" y1="{y:.1f}" y2="{y:.1f}" stroke-width="0.5"/>'
            )
            lines.append(f'<text x="{x0 + left - 4}" y="{y + 4:.1f}" text-anchor="end">{share * highest:.3g}</text>')
        points = [
            (x0 + left + index * step, height - bottom - value / highest * (height - bottom - top))
            for index, value in enumerate(values)
            if value is not None
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="#2a7de1" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#2a7de1"/>' for x, y in points]
        for index, label in enumerate(labels):
            x = x0 + left + index * step
            lines.append(f'<text x="{x:.1f}" y="{height - bottom + 14}" text-anchor="middle">{escape(label)}</text>')
        middle = x0 + left + (width - left - 20) / 2
        lines.append(f'<text x="{middle:.1f}" y="{height - 4}" text-anchor="middle">{escape(axis)}</text>')
    return "\n".join([*lines, "</svg>"])
