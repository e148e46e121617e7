"""Tables as plain aligned text: the same on a terminal, in a file and in a log."""

import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"([-+]?\d[\d., ]*(e[-+]?\d+)? ?(%|x|[kMGT]?B?|[mu]?s|us/image)?|nan|inf|-)?")


def format_table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, rule: bool = True) -> str:
    """Columns as wide as their widest cell; numbers to the right, names and the first column to the left. `rule`: a line below the titles."""
    cells = [list(titles), *([str(cell) for cell in row] for row in rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [bool(place) and all(map(_NUMBER.fullmatch, column[1:])) for place, column in enumerate(columns)]
    lines = [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], *(["  ".join("-" * width for width in widths)] if rule else []), *lines[1:]])
