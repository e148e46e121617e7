"""Errors with the options as the user typed them, not under our names."""

import re
from collections.abc import Sequence

from conveyor.dialects.table import Row, Table, plain
from conveyor.errors import UserError
from conveyor.options import specs

_FLAG = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")
_BARE = re.compile(r"([a-z0-9-]+)(:| is | cannot | takes | needs )")
"""The option with which an error about a value begins."""
_COMMAND = re.compile(r"conveyor [a-z]+[^,;:()]*")
"""A command of ours that an error proposes keeps our option names."""


def in_their_words(text: str, table: Table, script: str, words: Sequence[str], model: str | None) -> str:
    """`text` with each option as the user typed it; options of ours become those of the dialect that turn into them."""
    typed, verbatim = _typed(table, script, words, model)
    declared = table.declared(script)
    known = {name for row in declared for name in row.names}

    def replaced(found: re.Match[str]) -> str:
        flag = found[0]
        if flag in typed:
            return typed[flag]
        if flag in known or flag in verbatim:
            return flag
        rows = [row for row in declared if plain(flag).removeprefix("no_") in row.outcomes]
        rows = [row for row in rows if row.flag in typed] or rows
        if len(rows) != 1:
            return flag
        word = typed.get(rows[0].flag, rows[0].flag)
        return word if _is_unchanged(rows[0]) else f"{word} (here {flag})"

    bare = _BARE.match(text)
    if bare and bare[1].replace("-", "_") in specs():
        text = f"--{text}"
    parts, last = [], 0
    for command in _COMMAND.finditer(text):
        parts += [_FLAG.sub(replaced, text[last : command.start()]), command[0]]
        last = command.end()
    return "".join([*parts, _FLAG.sub(replaced, text[last:])])


def _is_unchanged(row: Row) -> bool:
    """Whether our option takes the value unchanged."""
    return bool(row.to) or re.fullmatch(r"`--[a-z0-9-]+`", row.ours) is not None


def _typed(table: Table, script: str, words: Sequence[str], model: str | None) -> tuple[dict[str, str], set[str]]:
    """Listed spelling -> what was typed for it; and what was typed that is none of the dialect's."""
    typed: dict[str, str] = {}
    verbatim: set[str] = set()
    for word in words:
        name = word.partition("=")[0]
        if not name.startswith("--"):
            continue
        try:
            found = table.find_flag(name, script, model)
        except UserError:
            found = None
        if found is None:
            verbatim.add(name)
        else:
            typed[found[0].flag] = name
    return typed, verbatim
