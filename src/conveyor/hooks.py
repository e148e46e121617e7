"""Extensions that higher packages declare: kind, name, and where the object is defined. No torch here.

`conveyor.dialects.hooks` declares log styles, configurations and names of layers of the older programs;
nothing else in the package knows those programs. A declared object is imported when it is first asked for.
"""

import importlib
from collections.abc import Iterator
from typing import Any

DECLARED_IN = "conveyor.dialects.hooks"
"""The module with the table `HOOKS`: {kind: {name: "module:attribute"}}."""


def names(kind: str) -> tuple[str, ...]:
    """The names declared for `kind`, in order."""
    return tuple(_declared(kind))


def find(kind: str, name: str) -> Any:
    """What was declared as `name`; None where nothing was."""
    place = _declared(kind).get(name)
    return None if place is None else _load(place)


def every(kind: str) -> Iterator[Any]:
    """Everything that was declared for `kind`, in order."""
    for place in _declared(kind).values():
        yield _load(place)


def _load(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _declared(kind: str) -> dict[str, str]:
    table: dict[str, dict[str, str]] = importlib.import_module(DECLARED_IN).HOOKS
    return table.get(kind, {})
