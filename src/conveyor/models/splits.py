"""From split names to the units before which a model is cut."""

import re
from collections.abc import Sequence

from conveyor.errors import UserError, nearest
from conveyor.models.units import Unit

_PATTERN_SIGNS = set("*+?[](){}|^$\\")


def names_of(unit: Unit) -> tuple[str, ...]:
    """Every name that means this unit, as written: module path first."""
    return (unit.path, *unit.aliases)


def _key(name: str) -> str:
    """`/` and `.` mean the same in a path."""
    return name.strip().strip("/").replace("/", ".")


def resolve(model_name: str, units: Sequence[Unit], names: Sequence[str]) -> list[int]:
    """The unit indices of the split points: the named layer is the first of the next stage.

    A name is a module path (with `.` or `/`), one of `library_names`, or a regular expression, which then means the first
    unit after the previous split that has a name it matches in full.
    """
    table: dict[str, int] = {}
    for unit in units:
        for name in (*names_of(unit), unit.name):
            table.setdefault(_key(name), unit.index)
    points: list[int] = []
    for name in names:
        previous = points[-1] if points else 0
        index = table.get(_key(name))
        if index is None and _PATTERN_SIGNS & set(name):
            index = _first_match(model_name, units, name, previous)
        if index is None:
            raise UserError(f"{model_name} has no layer {name!r} to split at{_suggest(name, units)}.")
        if index == 0:
            raise UserError(
                f"split point {name!r} is the first layer of {model_name}, so the first stage would be empty:"
                f" choose a later one{_suggest(name, units[1:])}."
            )
        if units[index].inside:
            raise UserError(
                f"no stage of {model_name} can begin at {name!r}, where several tensors go on in one value: choose a layer before or"
                " after"
            )
        if index <= previous:
            told = "the same place as" if index == previous else "before"
            raise UserError(
                f"split points must follow the order of the layers, but {name!r} is {told} {names[len(points) - 1]!r}"
                f" in {model_name}: put them in order."
            )
        points.append(index)
    return points


def _first_match(model_name: str, units: Sequence[Unit], pattern: str, after: int) -> int | None:
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UserError(
            f"split point {pattern!r} is no layer of {model_name} and no regular expression ({error})."
        ) from error
    for unit in units[after + 1 :]:
        for name in names_of(unit):
            if expression.fullmatch(name) or expression.fullmatch(name.replace(".", "/")):
                return unit.index
    return None


def _suggest(wrong: str, units: Sequence[Unit]) -> str:
    every = [name for unit in units for name in names_of(unit)]
    spelled = [name.replace(".", "/") for name in every] if "/" in wrong else every
    close = nearest(wrong, [*spelled, *every], count=6)
    if not close:
        close = [unit.path for unit in units[1 :: max(1, len(units) // 8)]]
        return f" (some that it has: {', '.join(close)}; `conveyor models show` lists all)"
    return f" (nearest: {', '.join(dict.fromkeys(close))})"
