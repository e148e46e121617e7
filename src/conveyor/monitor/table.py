"""Tables as plain aligned text: the same on a terminal, in a file and in a log."""

import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"([-+]?\d[\d., ]*(e[-+]?\d+)? ?(%|x|[kMGT]?B?|[mu]?s|us/image)?|nan|inf|-)?")
NO_TERMINAL = (1 << 20, 24)
"""The size of no terminal: a row of a table, or a command to copy, is one line."""
_LEAST, _BELOW = 20, 6
"""The least width worth folding in, and the indent of lines below a row."""


def format_table(
    titles: Sequence[str], rows: Iterable[Sequence[object]], *, rule: bool = True, fold: bool = False
) -> str:
    """Columns as wide as their widest cell; numbers to the right, names and the first column to the left.

    `rule`: a line below the titles. A title may have several lines. `fold`: words of the last column that do not fit a
    terminal (`$COLUMNS`) go on below it, or, where too little is left for it, on lines of their own below the row.
    Elsewhere a row stays one line, for `grep` and for scripts.
    """
    heads = [title.split("\n") for title in titles]
    height = max(map(len, heads))
    tops = [list(row) for row in zip(*([""] * (height - len(head)) + head for head in heads), strict=True)]
    body = [[str(cell) for cell in row] for row in rows]
    columns = list(zip(*tops, *body, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [bool(place) and all(map(_NUMBER.fullmatch, column[height:])) for place, column in enumerate(columns)]

    last, start = len(widths) - 1, sum(widths[:-1]) + 2 * (len(widths) - 1)
    left = shutil.get_terminal_size(NO_TERMINAL).columns - start

    def line(cells: Sequence[str]) -> str:
        placed = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        ]
        return "  ".join(placed).rstrip()

    def lines(cells: Sequence[str]) -> list[str]:
        if not fold or right[last] or len(cells[last]) <= left:
            return [line(cells)]
        indent = start if left >= _LEAST else _BELOW
        pieces = textwrap.wrap(cells[last], left + start - indent, break_long_words=False, break_on_hyphens=False)
        beside = pieces.pop(0) if indent == start else ""
        return [line([*cells[:last], beside]), *(" " * indent + piece for piece in pieces)]

    head = [text for cells in tops for text in lines(cells)]
    below = ["  ".join("-" * width for width in widths)] if rule else []
    return "\n".join([*head, *below, *(text for cells in body for text in lines(cells))])
