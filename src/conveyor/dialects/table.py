"""How a dialect declares an option: one row with its spellings, its kind and what it is translated to."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from conveyor.errors import UserError
from conveyor.options import find, specs

FLAGS = ("flag", "off")
"""Kinds without a value on the command line: `flag` sets True, `off` sets False."""
LISTS = ("ints", "floats", "texts")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One option of a dialect.

    Exactly one of three fields is set: `to` names our option that takes the value unchanged; `ours` says in
    words which of our options it turns into; `nothing` is the reason why it has no effect here (printed once when the
    option is given).
    """

    names: tuple[str, ...]
    kind: str = "text"
    default: Any = None
    choices: tuple[Any, ...] = ()
    to: str = ""
    ours: str = ""
    nothing: str = ""
    about: str = ""
    dest: str = ""
    models: tuple[str, ...] = ()
    """Declared only for these model families (help that depends on the model)."""
    scripts: tuple[str, ...] = ()
    """Declared only by these scripts; () is the training options, which every script of the dialect shares."""
    nargs: str = "+"
    least: float | None = None
    """The smallest number that the option takes."""

    @property
    def flag(self) -> str:
        """The spelling under which the option is listed."""
        return self.names[0]

    @property
    def key(self) -> str:
        """The name of the value: the `dest` of the original, with underscores."""
        return self.dest or plain(self.flag)

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that name the option in a configuration file, in dashes-to-underscores form."""
        return tuple(dict.fromkeys((self.key, *(plain(name) for name in self.names))))

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The names of our options that it turns into."""
        words = re.findall(r"`--(?:no-)?([a-z0-9-]+)[^`]*`(?! of )", self.ours)  # not those of another command or run
        return (self.to,) if self.to else tuple(name for word in words if (name := word.replace("-", "_")) in specs())

    @property
    def target(self) -> str:
        """What the option is translated to, for the migration tables."""
        if self.to:
            return f"`{find(self.to).flag}`"
        return self.ours or f"no effect: {self.nothing}"


def plain(name: str) -> str:
    """`--batch-size` -> `batch_size`."""
    return name.lstrip("-").replace("-", "_")


def row(names: str, kind: str = "text", default: Any = None, **rest: Any) -> Row:
    """A row; `names` are its spellings, separated by spaces, the listed one first."""
    built = Row(names=tuple(names.split()), kind=kind, default=default, **rest)
    assert bool(built.to) + bool(built.ours) + bool(built.nothing) == 1, f"{names}: one of to, ours, nothing"
    return built


class Table:
    """The rows of a dialect, found by spelling or by configuration key.

    The rows, in groups by title, hold the options of all versions of a program. `absent` has, for each version that a
    document describes, the spellings that this version does not declare.
    """

    def __init__(self, groups: Mapping[str, Sequence[Row]], absent: Iterable[str] = ("",)) -> None:
        self.groups = groups
        self.rows = tuple(row for rows in groups.values() for row in rows)
        self.absent = tuple(frozenset(names.split()) for names in absent)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def declared(self, script: str, model: str | None = None) -> list[Row]:
        """Rows that a script knows; with a model family, without the options of other families."""
        return [
            row
            for row in self.rows
            if (not row.scripts or script in row.scripts) and (model is None or not row.models or model in row.models)
        ]

    def spellings(self) -> set[str]:
        return {name for row in self.rows for name in row.names}

    def find_flag(self, word: str, script: str, model: str | None = None) -> tuple[Row, str] | None:
        """The row that `word` (without `=value`) names: exactly, or as a unique abbreviation; None if there is none.

        Two spellings of the same row never make a word ambiguous. What is ambiguous among the options of all versions
        may be unique among those that one version declares for the model.
        """
        rows = self.declared(script)
        for row in rows:
            if word in row.names:
                return row, word
        if not word.startswith("--") or len(word) < 3:
            return None
        found = _begun(word, rows, frozenset())
        if len(found) > 1:
            fitting = self.declared(script, model)
            unique = (one for absent in self.absent if len(one := _begun(word, fitting, absent)) == 1)
            found = next(unique, found)
        if len(found) > 1:
            names = ", ".join(sorted(name for _, name in found.values()))
            raise UserError(f"{word} could mean {names}: write more of the name")
        return next(iter(found.values()), None)


def _begun(word: str, rows: Iterable[Row], absent: frozenset[str]) -> dict[int, tuple[Row, str]]:
    """The rows with a spelling that begins with `word`, each with the first such spelling."""
    return {
        id(row): (row, name)
        for row in rows
        for name in reversed(row.names)
        if name.startswith(word) and name not in absent
    }
