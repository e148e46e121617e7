"""How an option is declared: a dataclass field that carries its help text, unit and choices."""

import dataclasses
from collections.abc import Callable
from typing import Any

METADATA_KEY = "conveyor"


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """What is known of an option besides its type and its default."""

    doc: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    metavar: str = ""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    """Bounds that are not allowed themselves; `minimum` and `maximum` are."""
    changes_result: bool = True
    """False for options that say where or how a run runs, never what it computes."""
    aliases: tuple[str, ...] = ()
    """Other common names of the option; accepted as input, never written."""
    read: Callable[[str], object] | None = None
    """Parser of a text with a form (`30min`, `25MiB`), called when the option is set to find mistakes early."""


def option(default: Any, doc: str, **about: Any) -> Any:
    """A field of an option section; `about` takes the fields of `About`."""
    return dataclasses.field(default=default, metadata={METADATA_KEY: About(doc, **about)})


def about(field: dataclasses.Field[Any]) -> About:
    """What the declaration of `field` said about it."""
    found = field.metadata[METADATA_KEY]
    assert isinstance(found, About)
    return found
