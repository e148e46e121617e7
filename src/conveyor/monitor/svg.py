"""Charts as SVG: lines, bars and their axes, for pages (which define the colours) and as files of their own.

Colours are the classes `c0`..`c7` and a few more in `RULES`, whose values are the variables in `LIGHT` and `DARK`.
"""

import dataclasses
import html
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Point = tuple[float, float]
WIDTH, HEIGHT = 460.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 50.0, 10.0, 10.0, 34.0
MAX_POINTS = 240
LIGHT = {
    "card": "#ffffff", "ink": "#23272e", "soft": "#6a7079", "grid": "#ececea", "idle": "#f0f0ed", "on": "#ffffff",
    "c0": "#2f67b1", "c1": "#d97b29", "c2": "#2c9083", "c3": "#8c8f96", "c4": "#8a5fae", "c5": "#b8485a", "c6": "#7a9a3a",
    "c7": "#5b8fa8",
}  # fmt: skip
DARK = {
    "card": "#1c1f25", "ink": "#e3e5e8", "soft": "#979da6", "grid": "#272b32", "idle": "#23272e", "on": "#101215",
    "c0": "#7fb0ee", "c1": "#eba264", "c2": "#63c2b3", "c3": "#9a9ea6", "c4": "#b994da", "c5": "#e58292", "c6": "#acca6e",
    "c7": "#8fbdd2",
}  # fmt: skip
RULES = """.tick{font-size:11px;fill:var(--soft);font-variant-numeric:tabular-nums}.label{font-size:12.5px;fill:var(--ink)}
.on{font-size:10.5px;fill:var(--on);pointer-events:none}.grid{stroke:var(--grid);stroke-width:1}.idle{fill:var(--idle)}
.line{fill:none;stroke-width:1.9;stroke-linejoin:round;stroke-linecap:round}.line.even{stroke-width:1;stroke-dasharray:4 4}
""" + "".join(
    f".line.c{i}{{stroke:var(--c{i})}}.dot.c{i},.fill.c{i}{{fill:var(--c{i})}}.key.c{i}{{background:var(--c{i})}}\n"
    for i in range(8)
)


@dataclass(frozen=True, slots=True)
class Series:
    """A named line; `dots` marks every point, `colour` is an index into the palette; a line of `even` is thin and dashed."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    dots: bool = False
    even: bool = False


def variables(colours: Mapping[str, str]) -> str:
    """The colours as CSS custom properties."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def standalone(picture: str) -> str:
    """A picture as an SVG file with its own colours, which follow the reader's choice of light or dark."""
    picture = re.sub(r' data-(x|series)="[^"]*"', "", picture)  # for a page's script only
    style = (
        f"svg{{{variables(LIGHT)}font-family:system-ui,sans-serif;background:var(--card)}}"
        f"@media(prefers-color-scheme:dark){{svg{{{variables(DARK)}}}}}{RULES}"
    )
    return picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        ">", f"><style>{style}</style>", 1
    )


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
    x_names: Sequence[str] = (),
) -> str:
    """A chart of several lines over one x axis; an empty string when there is nothing to draw, with `skip_single` also
    when there is no line but only single points. `x_names` are words for x = 0, 1, ... in place of numbers.

    The values are in `data-series`, where the page's script reads them for the tooltip.
    """
    lines = [dataclasses.replace(one, points=thinned(one.points)) for one in series if one.points]
    if not lines or (skip_single and all(len(one.points) == 1 for one in lines)):
        return ""
    xs = [x for one in lines for x, _ in one.points]
    ys = [y for one in lines for _, y in one.points]
    y_ticks = ticks(
        min(ys) if y_range[0] is None else min(y_range[0], min(ys)),
        max(ys) if y_range[1] is None else max(y_range[1], max(ys)),
    )
    x_low, x_high = (0.0, len(x_names) - 1.0) if x_names else (min(xs), max(xs))
    if x_low == x_high:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    x_ticks = [tick for tick in ticks(x_low, x_high, 6) if x_low <= tick <= x_high]

    def at(x: float, y: float) -> Point:
        across = (x - x_low) / (x_high - x_low)
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return round(LEFT + across * (WIDTH - LEFT - RIGHT), 1), round(TOP + (1 - up) * (HEIGHT - TOP - BOTTOM), 1)

    marks = [(float(x), name) for x, name in enumerate(x_names)] or [(x, compact(x)) for x in x_ticks]
    parts = _axes(marks, y_ticks, at, x_label, y_format)
    data = []
    for one in lines:
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
    more = f' data-x="{html.escape(x_label, quote=True)}" data-series="{encoded}"'
    return drawn(WIDTH, HEIGHT, "chart", label, parts, more)


def _axes(
    x_ticks: Sequence[tuple[float, str]],
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
    for tick, name in x_ticks:
        x, _ = at(tick, y_ticks[0])
        parts.append(
            f'<text class="tick" x="{x}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{html.escape(name)}</text>'
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
        kind = " even" if one.even else ""
        parts.append(f'<polyline class="line c{one.colour % 8}{kind}" points="{path}"/>')
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
    return drawn(1000, 34, "bar", label, shapes, ' preserveAspectRatio="none"')


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def bars(rows: Sequence[tuple[str, str, float]], ours: str, *, label: str) -> str:
    """Horizontal bars of (group, name, value), a group's name at its first bar; `ours` has the first colour."""
    height, width, left = 18, 760, 330
    scale = (width - left - 60) / max([1.0, *(value for _, _, value in rows)])
    parts: list[str] = []
    previous = ""
    for index, (group, name, value) in enumerate(rows):
        y, colour, wide = index * height, 0 if name == ours else 3, value * scale
        title, previous = (group if group != previous else ""), group
        parts.append(f'<text class="tick" x="0" y="{y + 12}">{html.escape(title)}</text>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + 12}" text-anchor="end">{html.escape(name)}</text>')
        parts.append(f'<rect class="fill c{colour}" x="{left}" y="{y + 2}" width="{wide:.1f}" height="{height - 5}"/>')
        parts.append(f'<text class="tick" x="{left + wide + 4:.1f}" y="{y + 12}">{value:.2f}</text>')
    return drawn(width, height * (len(rows) + 1), "bars", label, parts)


def side_by_side(pictures: Sequence[tuple[str, str]], *, label: str) -> str:
    """Charts of `line_chart` as one, each with its title above."""
    parts = []
    for number, (title, picture) in enumerate(pictures):
        x = number * (WIDTH + 10)
        parts.append(f'<text class="label" x="{x + LEFT}" y="14">{html.escape(title)}</text>')
        parts.append(picture.replace("<svg ", f'<svg x="{x}" y="20" width="{WIDTH}" height="{HEIGHT}" ', 1))
    return drawn((WIDTH + 10) * max(1, len(pictures)), HEIGHT + 20, "charts", label, parts)


def drawn(width: float, height: float, kind: str, label: str, parts: Sequence[str], more: str = "") -> str:
    """The picture of these shapes; `kind` is its class, `more` further attributes."""
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{html.escape(label, quote=True)}"{more}>'
        f"{''.join(parts)}</svg>"
    )
