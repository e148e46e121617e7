"""Split points in a dialect's own names."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from conveyor.data import catalogue
from conveyor.data.subject import completed_subject
from conveyor.errors import UserError
from conveyor.options import Options

if TYPE_CHECKING:
    from torch import nn

    from conveyor.models.units import Unit


def check(options: Options, dialect: str) -> None:
    """Refuse split points that the model does not have, or not in this order; the error proposes the dialect's names.

    Only the options of the network are used.
    """
    named = options.batch.splits
    if named in ((), ("auto",)):
        return
    from conveyor.models import units
    from conveyor.training import build_model

    options, about, _ = completed_subject(options, catalogue.info(options.data))
    model = build_model.outline(options, about)
    found = units.trace(model, about.image_size, about.in_channels)
    problem = _problem(about.name, found, named)
    if problem:
        raise UserError(f"--splits: {_problem(about.name, _renamed(model, found, dialect), named) or problem}")


def _problem(model_name: str, found: "list[Unit]", named: Sequence[str]) -> str:
    """What is wrong with the split points; nothing if they are good."""
    from conveyor.models import splits

    try:
        splits.resolve(model_name, found, named)
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
