"""`conveyor models`: list the models with their size and cost, or show the units at which one can be cut."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from conveyor.monitor.progress import folded
from conveyor.monitor.table import format_table
from conveyor.options.parser import count
from conveyor.options.units import many

if TYPE_CHECKING:
    from conveyor.models.units import Unit

HELP = "List the models; `models show NAME` prints the layers at which one can be split."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", help="list or show [list]")
    parser.add_argument("name", nargs="?", help="the model to show, or a part of the names to list")
    parser.add_argument("--image-size", type=int, help="height and width of the images [the model's own]")
    parser.add_argument("--num-classes", type=int, help="classes [the model's own]")
    parser.add_argument("--in-channels", type=int, default=3, help="input channels [3]")
    parser.add_argument("--stages", type=count, help="propose splits into this many stages of equal work")
    parser.add_argument("--json", action="store_true", help="JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    from conveyor.errors import UserError

    if arguments.action == "show":
        if arguments.name is None:
            raise UserError("which model? Write: conveyor models show NAME")
        print(show(arguments))
        return 0
    part = arguments.name if arguments.action == "list" else arguments.action
    print(listing(part or "", arguments.json))
    return 0


def listing(part: str, as_json: bool) -> str:
    """One line per model: parameters, multiply-adds per image, image size."""
    from conveyor.errors import UserError
    from conveyor.models import catalogue

    counts = catalogue.counts()
    wanted = part.lower().replace("-", "_")
    entries = [
        entry for entry in catalogue.known().values() if any(wanted in name for name in (entry.name, *entry.aliases))
    ]
    if not entries:
        raise UserError(f"no model has {part!r} in its name: `conveyor models` lists them all.")
    if as_json:
        rows = [
            {
                "name": entry.name,
                "aliases": list(entry.aliases),
                "image_size": entry.image_size,
                "num_classes": entry.num_classes,
                "parameters": counts[entry.name].parameters,
                "multiply_adds": counts[entry.name].multiply_adds,
                "about": entry.about,
            }
            for entry in entries
        ]
        return json.dumps(rows, indent=1)
    lines = []
    for entry in entries:
        count = counts[entry.name]
        also = f" (also {', '.join(entry.aliases)})" if entry.aliases else ""
        size, work = f"{count.parameters:,}", _short(count.multiply_adds)
        lines.append([entry.name, size, work, entry.image_size, f"{entry.about}{also}"])
    return format_table(["model", "parameters", "mult-adds", "image", "about"], lines, rule=False, fold=True)


def show(arguments: argparse.Namespace) -> str:
    """The units of one model: name, output shape, parameters, activation size, multiply-adds, what a cut sends."""
    from conveyor.data.subject import completed_subject
    from conveyor.models import user_module
    from conveyor.models.units import trace
    from conveyor.options import Options
    from conveyor.training.build_model import outline

    user_module.admit(arguments.name)
    asked = {"image_size": arguments.image_size, "num_classes": arguments.num_classes}
    options = Options().replace(model=arguments.name, in_channels=arguments.in_channels, **asked)
    options, about, _ = completed_subject(options, None)
    image_size, model = about.image_size, outline(options, about)
    units = trace(model, image_size, about.in_channels)
    splits = _proposed(units, arguments.stages)
    if arguments.json:
        return json.dumps(
            {"model": arguments.name, "units": [asdict(unit) for unit in units], "splits": splits}, indent=1
        )
    total_parameters = sum(unit.parameters for unit in units)
    total_work = sum(unit.multiply_adds for unit in units)
    title = (
        f"{arguments.name}: {total_parameters:,} parameters, {_short(total_work)} multiply-adds per image of"
        f" {image_size} pixels, {len(units)} units. A split before a unit sends `crossing` per image (float32)."
    )
    titles = ["", "unit", "output", "parameters", "acti-\nvation", "crossing", "mult-\nadds", "kind, other names"]
    rows = [
        [
            unit.index, unit.path, "x".join(map(str, unit.shape)), f"{unit.parameters:,}",
            _bytes(unit.activation_bytes), _bytes(unit.crossing_bytes),
            _short(unit.multiply_adds) if unit.multiply_adds else "", " ".join((unit.kind, *unit.aliases)),
        ]
        for unit in units
    ]  # fmt: skip
    lines = [folded(title), "", format_table(titles, rows, rule=False, fold=True)]
    if splits:
        lines += ["", f"for {many(arguments.stages, 'stage')}: --splits {' '.join(splits)}"]
    return "\n".join(lines)


def _proposed(units: "list[Unit]", stages: int | None) -> list[str]:
    """Names of splits into stages of about equal work."""
    if stages in (None, 1):
        return []
    from conveyor.pipeline.balance import automatic_splits

    return [units[index].path for index in automatic_splits(units, stages)]


def _short(number: int) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)


def _bytes(number: int) -> str:
    return f"{number / 1e6:.2f} MB" if number >= 1e5 else f"{number / 1e3:.1f} kB"
