"""Which options of a command line a dialect accepts and ignores without a note.

Each option is left out in turn. What is then still the same in every word (our equivalent command, the notes, the run
folder, what serving is told) did not depend on the option; unless its value is what the program has without it, nobody
has read it.
"""

import os
import shlex
from pathlib import Path
from typing import Any

from conveyor.dialects import launchers, scripts
from conveyor.dialects.reader import Values
from conveyor.dialects.table import Row
from conveyor.errors import UserError
from conveyor.options import specs


def ignored_options(command: str, folder: Path) -> list[str]:
    """The ignored options of the script that `command` starts; none for commands that are not of a dialect."""
    words = shlex.split(command)
    starts = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
    if starts is None:
        return []
    script = launchers.find_script(["python3", *words[starts:]])
    assert script is not None
    launcher = launchers.read_poprun(words[1:]).launcher if words[0] == "poprun" else None

    def meaning(own: list[str]) -> tuple[object, ...] | None:
        try:
            made = scripts.translate(
                script.dialect, script.name, own, folder=script.folder, environment={}, launcher=launcher
            )
        except UserError:
            return None
        told = made.options if made.command == "request" else None  # its equivalent command does not show them
        settings = sorted((key, str(value)) for key, value in made.settings.items())
        return made.arguments(), made.notes, made.folder, settings, told, made.dry_run

    before = Path.cwd()
    os.chdir(folder)
    try:
        own = list(script.words)
        whole, found = meaning(own), list[str]()
        if whole is None:
            return []  # refused as a whole
        for start, end in groups(own):
            without = own[:start] + own[end:]
            if meaning(without) == whole and not is_default(script, own, without):
                found.append(" ".join(own[start:end]))
        return found
    finally:
        os.chdir(before)


def groups(words: list[str]) -> list[tuple[int, int]]:
    """The places of each option with its values."""
    starts = [index for index, word in enumerate(words) if word.startswith("--") or word in ("-N",)]
    return list(zip(starts, [*starts[1:], len(words)], strict=True))


def is_default(script: launchers.Script, own: list[str], without: list[str]) -> bool:
    """Whether leaving words out changes no value: the option said what holds anyway, or a later one overrules it."""
    one, other = (scripts.values_of(script.dialect, script.name, words, script.folder) for words in (own, without))
    return all(same_value(row, one[key], other[key]) for key, row in one.rows.items()) and same_own(one, other)


def same_value(row: Row, one: Any, other: Any) -> bool:
    """Equal, or one is not given where the other is what our option has without it: no label smoothing is one of 0."""
    if one == other or not row.to:
        return bool(one == other)
    default = specs()[row.to].default
    return all(value is None or value == default for value in (one, other))


def same_own(one: Values, other: Values) -> bool:
    from conveyor.options import Options

    return Options().updated(one.own) == Options().updated(other.own)
