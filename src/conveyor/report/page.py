"""The report as one HTML file: everything inline, no network, below 300 kB."""

import dataclasses
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conveyor.errors import UserError, first_line
from conveyor.files import make_parent, write_atomically
from conveyor.monitor import svg
from conveyor.report import compare, sections
from conveyor.report.inputs import FILES, Run, read_run
from conveyor.version import __version__

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).parent / "template"
SIZE_LIMIT = 300_000
IMAGE_BUDGET = 160_000
"""Bytes for the images; halved until the page fits."""
PARTS = (
    "verdict", "tiles", "comparison", "charts", "time_split", "layout", "gantt", "classes", "calibration", "images", "options", "command", "notes",
)  # fmt: skip
"""Values of the template that a page may lack."""


def write_report(
    folders: Sequence[str | Path], target: str | Path | None = None, checkpoint: str | None = None
) -> Path:
    """Report one run, or compare several; returns the file written (default: report.html in the first run's folder).

    `checkpoint` (`best`, `last` or an update) is the one whose accuracy stands at the top: by default the one that
    `serve`, `load` and `export` take by default.
    """
    if not folders:
        raise UserError("a report needs at least one run folder")
    runs = [read_run(folder) for folder in folders]
    path = Path(target) if target else runs[0].folder / ("report.html" if len(runs) == 1 else "comparison.html")
    if checkpoint is not None and len(runs) > 1:
        raise UserError("--checkpoint is for the report of one run: a comparison shows the best and the last of each")
    if target:
        make_parent(path)
    write_atomically(path, render(runs, checkpoint=checkpoint))
    return path


def render(
    runs: Sequence[Run], now: datetime.datetime | None = None, checkpoint: str | None = None, *, live: bool = False
) -> str:
    """The HTML text, with as many of the images as the limit of its size allows.

    A `live` page has style and script in files of their own, and refreshes itself.
    """
    try:
        return _rendered(runs, now, checkpoint, live)
    except UserError:
        raise
    except Exception as error:
        # What is in the files cannot be checked beforehand in all that the page makes of it.
        for path, others in _without_one(runs):
            try:
                _rendered(others, now, checkpoint, live)
            except Exception:
                continue
            what = f"{type(error).__name__}: {first_line(error)[:100]}"
            raise UserError(
                f"{path} holds something that cannot be shown ({what}): remove it to report the rest"
            ) from error
        raise


def _without_one(runs: Sequence[Run]) -> Iterator[tuple[Path, list[Run]]]:
    """(a file, the runs as if it were not there) for each of their files."""
    for number, run in enumerate(runs):
        nothing = Run(run.folder, {})
        for field, file in FILES.items():
            if getattr(run, field):
                poorer = dataclasses.replace(run, **{field: getattr(nothing, field)})
                yield run.folder / file, [*runs[:number], poorer, *runs[number + 1 :]]


def _rendered(runs: Sequence[Run], now: datetime.datetime | None, checkpoint: str | None, live: bool) -> str:
    budget = IMAGE_BUDGET
    while True:
        context = sections.of_run(runs[0], budget, checkpoint) if len(runs) == 1 else compare.of_runs(runs)
        page = fill(context | {"live": live}, now)
        if len(page.encode(errors="surrogateescape")) < SIZE_LIMIT or budget == 0:
            return page
        budget = 0 if budget < 20_000 else budget // 2


def style() -> str:
    """The style sheet of the page."""
    return str(_environment().get_template("style.css").render(svg=svg))


def script() -> str:
    return (TEMPLATES / "script.js").read_text(encoding="utf-8")


def fill(context: dict[str, Any], now: datetime.datetime | None = None) -> str:
    """The page with these parts."""
    from markupsafe import Markup

    written = (now or datetime.datetime.now().astimezone()).strftime("%Y-%m-%d %H:%M")
    return (
        _environment()
        .get_template("page.html")
        .render(
            **(dict.fromkeys(PARTS) | {"tables": [], "live": False} | context),
            style=Markup(style()),
            script=Markup(script()),
            version=__version__,
            written=written,
        )
    )


def _environment() -> "jinja2.Environment":
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
