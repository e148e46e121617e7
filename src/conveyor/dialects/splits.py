"""Split points in a dialect's own names."""

import dataclasses
from typing import TYPE_CHECKING

from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.spec import RunSpec, resolve

if TYPE_CHECKING:
    from torch import nn

    from conveyor.models.units import Unit


def check(options: Options, dialect: str) -> None:
    """Refuse split points that the model does not have, or not in this order; the error proposes the dialect's names.

    Where the run will run does not matter for it.
    """
    if options.batch.splits not in ((), ("auto",)):
        check_named(resolve(options.replace(layout="1x1", device="cpu")), dialect)


def check_named(spec: RunSpec, dialect: str) -> None:
    """The same for a run that is resolved already and names its splits."""
    from conveyor.models import units
    from conveyor.training import build_model

    model = build_model.outline(spec)
    found = units.trace(model, spec.image_size, spec.in_channels)
    if _problem(spec, found):
        raise UserError(f"--splits: {_problem(spec, _renamed(model, found, dialect)) or _problem(spec, found)}")


def _problem(spec: RunSpec, found: "list[Unit]") -> str:
    """What is wrong with the split points; nothing if they are good."""
    from conveyor.models import splits

    try:
        splits.resolve(spec.model_name, found, spec.split_points)
    except UserError as problem:
        return str(problem).rstrip(".")
    return ""


def _renamed(model: "nn.Module", found: "list[Unit]", dialect: str) -> "list[Unit]":
    """The units under the dialect's names alone; by module paths where it has no names of its own."""
    from conveyor.dialects.layer_names import names_in
    from conveyor.models.units import is_inside

    names: dict[int, list[str]] = {}
    for name, path in names_in(model, dialect):
        index = next((unit.index for unit in found if is_inside(unit.path, path)), None)
        if index is not None:
            names.setdefault(index, []).append(name)
    if not names:
        return [dataclasses.replace(unit, aliases=()) for unit in found]
    return [
        dataclasses.replace(
            unit, name=names[unit.index][0], path=names[unit.index][0], aliases=tuple(names[unit.index])
        )
        for unit in found
        if unit.index in names
    ]
