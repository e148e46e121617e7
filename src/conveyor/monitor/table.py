"""Tables as plain aligned text: the same on a terminal, in a file and in a log."""

from collections.abc import Iterable, Sequence


def format_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as their widest cell; numbers to the right, text to the left."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(titles), *cells]) for column in range(len(titles))]
    right = [bool(cells) and all(_is_number(row[column]) for row in cells) for column in range(len(titles))]

    def line(row: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([line(titles), "  ".join("-" * width for width in widths), *(line(row) for row in cells)])


def _is_number(text: str) -> bool:
    stripped = text.strip().rstrip("%x").replace(",", "").strip()
    if stripped in ("", "-"):
        return True
    try:
        float(stripped)
    except ValueError:
        return False
    return True
