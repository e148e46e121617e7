"""Line charts, stacked bars and their axes as inline SVG that takes its colours from the page's style.

Colours are classes `c0`..`c7` (the page defines them for light and dark); nothing here names a colour.
"""

import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Point = tuple[float, float]
WIDTH, HEIGHT = 460.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 50.0, 10.0, 10.0, 34.0
MAX_POINTS = 240


@dataclass(frozen=True, slots=True)
class Series:
    """A named line; `dots` marks every point, `colour` is an index into the page's palette."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    dots: bool = False


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from at most `low` to at least `high`.

    >>> ticks(0, 97)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    if not high > low:
        low, high = low - (abs(low) or 1.0) * 0.5, high + (abs(high) or 1.0) * 0.5
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # Rounded in proportion: learning rates of 1e-13 have ticks too.
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def thinned(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """At most `limit` points: of each group of neighbours the lowest and the highest, so that no spike is lost."""
    if len(points) <= limit:
        return list(points)
    groups = max(1, limit // 2 - 1)
    kept: list[Point] = [points[0]]
    for group in range(groups):
        part = points[group * len(points) // groups : (group + 1) * len(points) // groups]
        ends = {part.index(min(part, key=lambda p: p[1])), part.index(max(part, key=lambda p: p[1]))}
        kept += [part[index] for index in sorted(ends)]
    return list(dict.fromkeys([*kept, points[-1]]))


def compact(value: float) -> str:
    """`1500000 -> 1.5M`, `0.00025 -> 2.5e-4`, `0.1 -> 0.1`: short enough for an axis."""
    size = abs(value)
    if size >= 1e9:
        return f"{value / 1e9:.4g}G"
    if size >= 1e6:
        return f"{value / 1e6:.4g}M"
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    if size == 0 or size >= 1e-3:
        return f"{value:.4g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def percent(value: float) -> str:
    return f"{value:g} %"


def line_chart(
    series: Sequence[Series],
    *,
    label: str,
    x_label: str = "epoch",
    y_range: tuple[float | None, float | None] = (None, None),
    y_format: Callable[[float], str] = compact,
    skip_single: bool = False,
) -> str:
    """A chart of several lines over one x axis; an empty string when there is nothing to draw, with `skip_single` also
    when there is no line but only single points.

    The values are in `data-series`, where the page's script reads them for the tooltip.
    """
    drawn = [Series(one.name, thinned(one.points), one.colour, one.dots) for one in series if one.points]
    if not drawn or (skip_single and all(len(one.points) == 1 for one in drawn)):
        return ""
    xs = [x for one in drawn for x, _ in one.points]
    ys = [y for one in drawn for _, y in one.points]
    y_ticks = ticks(
        min(ys) if y_range[0] is None else min(y_range[0], min(ys)),
        max(ys) if y_range[1] is None else max(y_range[1], max(ys)),
    )
    x_low, x_high = min(xs), max(xs)
    if x_low == x_high:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    x_ticks = [tick for tick in ticks(x_low, x_high, 6) if x_low <= tick <= x_high]

    def at(x: float, y: float) -> Point:
        across = (x - x_low) / (x_high - x_low)
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return round(LEFT + across * (WIDTH - LEFT - RIGHT), 1), round(TOP + (1 - up) * (HEIGHT - TOP - BOTTOM), 1)

    parts = _axes(x_ticks, y_ticks, at, x_label, y_format)
    data = []
    for one in drawn:
        placed = [at(x, y) for x, y in one.points]
        parts += _line(one, placed)
        data.append(
            {
                "n": one.name,
                "c": one.colour % 8,
                "p": [[px, py, _short(x), _short(y)] for (px, py), (x, y) in zip(placed, one.points, strict=True)],
            }
        )
    encoded = html.escape(json.dumps(data, separators=(",", ":")), quote=True)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{html.escape(label, quote=True)}" '
        f'data-x="{html.escape(x_label, quote=True)}" data-series="{encoded}">{"".join(parts)}</svg>'
    )


def _axes(
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    at: Callable[[float, float], Point],
    x_label: str,
    y_format: Callable[[float], str],
) -> list[str]:
    """Lines across and numbers at the y ticks, numbers at the x ticks, the name of the x axis; `at` places a value."""
    parts = []
    for tick in y_ticks:
        _, y = at(0.0, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 7}" y="{y + 4}" text-anchor="end">{html.escape(y_format(tick))}</text>'
        )
    for tick in x_ticks:
        x, _ = at(tick, y_ticks[0])
        parts.append(
            f'<text class="tick" x="{x}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{compact(tick)}</text>'
        )
    parts.append(
        f'<text class="tick" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 3}" text-anchor="middle">{html.escape(x_label)}</text>'
    )
    return parts


def _line(one: Series, placed: Sequence[Point]) -> list[str]:
    """A line through its placed points, and dots where they are wanted or there is only one."""
    parts = []
    if len(placed) > 1:
        path = " ".join(f"{x},{y}" for x, y in placed)
        parts.append(f'<polyline class="line c{one.colour % 8}" points="{path}"/>')
    if one.dots or len(placed) == 1:
        radius = 2.6 if len(placed) <= 40 else 1.4
        parts += [f'<circle class="dot c{one.colour % 8}" cx="{x}" cy="{y}" r="{radius}"/>' for x, y in placed]
    return parts


def stacked_bar(parts: Sequence[tuple[str, float, int]], *, label: str) -> str:
    """One horizontal bar cut into (name, amount, colour) parts in proportion to their amounts."""
    total = sum(amount for _, amount, _ in parts)
    if total <= 0:
        return ""
    shapes, x = [], 0.0
    for name, amount, colour in parts:
        width = 1000.0 * amount / total
        share = f"{100 * amount / total:.0f} %"
        shapes.append(
            f'<g><title>{html.escape(name)}: {share}</title><rect class="fill c{colour % 8}" x="{x:.1f}" y="0" '
            f'width="{max(0.0, width - 2):.1f}" height="34" rx="3"/></g>'
        )
        x += width
    return (
        f'<svg class="bar" viewBox="0 0 1000 34" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(label, quote=True)}">{"".join(shapes)}</svg>'
    )


def _short(value: float) -> float:
    return float(f"{value:.5g}")
