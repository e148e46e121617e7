"""The page, the table and the list of `conveyor data audit`."""

from collections import Counter
from pathlib import Path

from markupsafe import Markup
from PIL import Image

from conveyor.data.audit import Finding, Pictures
from conveyor.data.photo.decode import BadImageError
from conveyor.errors import UserError
from conveyor.files import make_parent, write_atomically
from conveyor.monitor.csvfile import csv_text
from conveyor.options.units import many
from conveyor.report import cells, page
from conveyor.report.images import data_uri

KINDS = ("leak", "duplicate", "near duplicate", "broken", "odd", "doubtful label")
SHOWN = 36
"""Pictures of each kind on the page."""


def write_audit(folder: Path, pictures: Pictures, found: list[Finding]) -> list[str]:
    """Write audit.html, audit.csv and exclude.txt; returns lines for the terminal."""
    places = {(split, pictures.key(split, index)): (split, index) for split, index in pictures}
    counts = Counter(one.kind for one in found)
    balance = pictures.balance()
    most, least = max(balance.values(), key=sum), min(balance.values(), key=sum)
    sentences = [
        f"{many(len(places), 'image')}, {many(len(balance), 'class')}: {sum(least)} to {sum(most)} images of a class"
    ]
    sentences += [f"{kind}: {counts[kind]}" for kind in KINDS]
    tables = [
        {
            "id": kind.replace(" ", "-"),
            "title": kind.capitalize(),
            "note": f"{counts[kind]} found" + (f", {SHOWN} shown" if counts[kind] > SHOWN else ""),
            "svg": Markup('<div class="sheet">{}</div>').format(
                Markup("").join(_figure(one, pictures, places) for one in shown)
            ),
            "head": [("image", False), ("split", False), ("label", False), ("what", False), ("other image", False)],
            "rows": [
                tuple(cells.text(value) for value in (one.path, one.split, one.label, one.detail, one.other))
                for one in shown
            ],
        }
        for kind in KINDS
        if (shown := [one for one in found if one.kind == kind][:SHOWN])
    ]
    tables.append(
        {
            "id": "balance", "title": "Class balance", "note": "", "svg": "",
            "head": [("class", False), ("training", True), ("validation", True)],
            "rows": [(cells.text(name), *(cells.count(n) for n in part)) for name, part in balance.items()],
        }
    )  # fmt: skip
    make_parent(folder / "audit.html")
    context = {"title": "Audit of a data set", "subtitle": sentences[0], "verdict": sentences[1:], "tables": tables}
    write_atomically(folder / "audit.html", page.fill(context))
    write_atomically(folder / "audit.csv", csv_text([Finding._fields, *found]))
    names = dict.fromkeys(one.path for one in found if one.exclude)
    write_atomically(folder / "exclude.txt", "".join(f"{name}\n" for name in names))
    return sentences


def _figure(one: Finding, pictures: Pictures, places: dict[tuple[str, str], tuple[str, int]]) -> Markup:
    try:
        pixels = pictures.pixels(*places[one.split, one.path])
    except (BadImageError, UserError, KeyError):
        return Markup("")
    source = data_uri(Image.fromarray(pixels), "JPEG", quality=70)
    caption = Markup("{}<br><span class='soft'>{}</span>").format(one.label, one.detail)
    return Markup('<figure><img alt="{}" src="{}"><figcaption>{}</figcaption></figure>').format(
        one.path, source, caption
    )
