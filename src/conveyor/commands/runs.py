"""`conveyor runs`: the runs in a folder, and their removal."""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from conveyor.errors import UserError, nothing_at
from conveyor.files import read_object, user_path
from conveyor.monitor.records import readable_time
from conveyor.monitor.table import format_table
from conveyor.options.units import many

HELP = "List the runs in a folder; sort, filter and delete them."
SORTS = ("time", "accuracy", "name", "seconds")


@dataclass(frozen=True, slots=True)
class Row:
    """One run as far as its files tell."""

    name: str
    model: str
    data: str
    accuracy: float | None
    """The best of its validations, percent."""
    seconds: float
    state: str
    """done, interrupted, ...: why it ended; running; or stopped, when nothing says why."""
    time: float
    """When something was last written, seconds since 1970."""
    folder: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="*", default=["runs"], metavar="DIR", help="Folders of runs, or runs. [runs]")
    parser.add_argument("--sort", choices=SORTS, default=SORTS[0], help="Order, best or newest last. [time]")
    parser.add_argument(
        "--filter", nargs="+", default=[], metavar="WORD", help="Only runs whose line holds all of these words."
    )
    parser.add_argument("--json", action="store_true", help="A JSON list.")
    parser.add_argument("--delete", action="store_true", help="Delete the runs listed, after a question.")
    parser.add_argument("--yes", action="store_true", help="With --delete: do not ask.")


def run(arguments: argparse.Namespace) -> int:
    rows = [row for folder in arguments.folders for row in rows_below(user_path(folder))]
    rows = [row for row in rows if all(word.lower() in " ".join(_cells(row)).lower() for word in arguments.filter)]
    rows.sort(key=lambda row: (getattr(row, arguments.sort) or 0) if arguments.sort != "name" else row.name)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    elif rows:
        titles = ["name", "model", "data", "best %", "took", "state", "last written"]
        print(format_table(titles, map(_cells, rows), rule=False))
    else:
        print(f"no run {'fits' if arguments.filter else 'is'} in {' '.join(arguments.folders)}")
    return _delete(rows, sure=arguments.yes) if arguments.delete and rows else 0


def rows_below(folder: Path) -> list[Row]:
    """The runs in `folder`, or `folder` itself if it is one."""
    if not folder.exists():
        raise nothing_at(folder, "a folder that holds runs")
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: give one that holds runs")
    if (folder / "options.yml").is_file():
        return [_row(folder)]
    return [_row(entry) for entry in sorted(folder.iterdir()) if (entry / "options.yml").is_file()]


def _row(folder: Path) -> Row:
    from conveyor.checkpoint.lock import is_held
    from conveyor.monitor.csvfile import read_last_row, read_rows
    from conveyor.report.inputs import with_numbers

    spec, result = read_object(folder / "spec.json"), read_object(folder / "result.json")
    validations = map(with_numbers, read_rows(folder / "validation.csv"))
    seconds = result.get("seconds") or with_numbers(read_last_row(folder / "metrics.csv")).get("seconds")
    written = [path.stat().st_mtime for path in (folder / "metrics.csv", folder / "options.yml") if path.exists()]
    state = "running" if is_held(folder) else str(result.get("reason", "stopped"))
    return Row(
        name=folder.resolve().name,
        model=str(spec.get("model", "")),
        data=str(spec.get("data", "")),
        accuracy=max((one for row in validations if isinstance(one := row.get("accuracy"), float)), default=None),
        seconds=float(seconds or 0.0) if isinstance(seconds, int | float) else 0.0,
        state=state,
        time=max(written),
        folder=str(folder),
    )


def _cells(row: Row) -> list[str]:
    accuracy = "" if row.accuracy is None else f"{row.accuracy:.2f}"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.time))
    return [row.name, row.model, row.data, accuracy, readable_time(row.seconds), row.state, when]


def _delete(rows: list[Row], *, sure: bool) -> int:
    """Delete what the runs wrote, after a confirmation unless `sure`; never one that is running."""
    from conveyor.run.folder import delete

    running = [row.name for row in rows if row.state == "running"]
    if running:
        raise UserError(f"{running[0]} is running: stop it first, or choose other runs with --filter")
    if not sure:
        if not sys.stdin.isatty():
            raise UserError(f"deleting {many(len(rows), 'run')} needs an answer: add --yes")
        what = "this run" if len(rows) == 1 else f"these {len(rows)} runs"
        try:
            answer = input(f"delete {what} for ever? [y/N] ")
        except EOFError:  # Ctrl-D
            answer = ""
        if answer.lower() != "y":
            print("nothing was deleted")
            return 0
    for row in rows:
        print(delete(Path(row.folder)))
    return 0
