"""The pictures that are not charts: confusion matrix, layout of lanes and stages."""

import html
from collections.abc import Sequence

from conveyor.monitor import svg
from conveyor.options.units import many
from conveyor.report.images import data_uri
from conveyor.report.inputs import Confusion

MAX_DRAWN_CLASSES = 24
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
                inside = "on" if strength > 0.6 else "in"
                parts.append(
                    f'<text class="{inside}" x="{x + cell / 2 - 0.7:.1f}" y="{y + cell / 2 + 3.5:.1f}" text-anchor="middle">{count}</text>'
                )
            parts.append("</g>")
    full = margin + side + 18
    return svg.drawn(
        round(full),
        round(full - 12),
        "matrix",
        f"Confusion matrix of {size} classes",
        parts,
        f' width="{full * 1.15:.0f}"',
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
    source = data_uri(image.quantize(64, method=Image.Quantize.FASTOCTREE), "PNG", optimize=True)
    return f'<img class="matrix pixels" alt="Confusion matrix of {size} classes: rows true, columns predicted" src="{source}">'


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
        parts.append(f'<text class="tick" x="0" y="{height + 10}">{many(lanes - shown, "lane")} more like these</text>')
        height += 18
    note = f"{many(lanes, 'lane')} of {many(depth, 'worker')}, {many(threads, 'thread')} each"
    return svg.drawn(width, height, "layout", note, parts, f' width="{width * 1.1:.0f}"')


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
