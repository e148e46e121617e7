"""From words on a command line and keys of a configuration file to the values of a dialect's options."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conveyor.dialects.configurations import entries
from conveyor.dialects.table import FLAGS, LISTS, Row, Table, plain
from conveyor.dialects.values import convert
from conveyor.errors import UserError, did_you_mean
from conveyor.options import find, specs
from conveyor.options.file import read_mapping, read_text
from conveyor.options.parser import Parser

OWN_FLAGS = ("dry-run", "json")
"""Switches of ours that every dialect's scripts understand, besides our options under their full names."""


class Values:
    """The values of one run's options: given ones, those of a configuration, and the defaults."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {row.key: row for row in rows}
        self.given: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.config_name: str | None = None
        self.own: dict[str, Any] = {}
        """Our own options, given by their full names after the dialect's."""
        self.notes: list[str] = []
        self.spelled: set[str] = set()
        """The spellings that the command line used, abbreviations written out."""
        self.dry_run = False
        self.json = False

    def __getitem__(self, key: str) -> Any:
        if key in self.given:
            return self.given[key]
        if key in self.config:
            return self.config[key]
        return self.rows[key].default if key in self.rows else None

    def has(self, key: str) -> bool:
        """Whether the user gave the option, on the command line or in a configuration."""
        return key in self.given or key in self.config

    def spelling(self, key: str) -> str:
        return self.rows[key].flag


DEFINING = ("data", "model", "norm", "optimizer")
"""Options of ours from which a dialect derives other defaults: for these the dialect's own options must be used."""


def read(table: Table, script: str, words: Sequence[str], model: str | None = None) -> Values:
    """The values on a command line of `script`; configurations are added by `add_configuration`.

    `model` is the family whose options an abbreviation may mean.
    """
    rows = table.declared(script)
    normal, own, switches = _split_own(table, script, words, model)
    _refuse_own(table, script, own)
    values = Values(rows)
    values.own = own
    values.dry_run, values.json = "dry-run" in switches, "json" in switches
    namespace = _parser(script, rows).parse_args(_canonical(table, script, normal, values.spelled, model))
    for row in rows:
        if hasattr(namespace, row.key):
            values.given[row.key] = convert(row, getattr(namespace, row.key))
    return values


def check_family(values: Values, family: str) -> None:
    """Refuse options of other model families as unknown, as a program does whose options depend on the chosen model."""
    for key, row in values.rows.items():
        if row.models and family not in row.models and key in values.given:
            raise UserError(
                f"there is no option {row.flag} for the model {family}: it belongs to {' and '.join(row.models)}"
            )


def add_configuration(values: Values, name: str, texts: Mapping[str, str], user_file: str | None) -> None:
    """Take the values of configuration `name` from `user_file` if given, else from the first of `texts` that has it."""
    sources: dict[str, dict[str, Any]] = {}
    if user_file is not None:
        sources[user_file] = read_mapping(user_file)
    else:
        sources = {file: entries(file, text) for file, text in texts.items()}
    found = next(((file, held[name]) for file, held in sources.items() if name in held), None)
    if found is None:
        names = sorted({key for held in sources.values() for key in held})
        hint = did_you_mean(name, names) or (f" (there are {', '.join(names)})" if names else "")
        raise UserError(f"there is no configuration {name!r} in {' or '.join(sources) or 'any file'}{hint}")
    file, entry = found
    if not isinstance(entry, dict):
        raise UserError(f"{file}: the configuration {name!r} should hold 'option: value' lines")
    values.config_name = name
    where = f"{file}: {name}"
    by_key = {key: row for row in reversed(list(values.rows.values())) for key in row.keys}
    by_key.update(values.rows)
    for key, value in entry.items():
        row = by_key.get(plain(str(key))) or by_key.get(find_prefix(str(key), by_key) or "")
        if row is None:
            values.notes.append(f"{where}: unknown key {key!r} ignored{did_you_mean(str(key), by_key)}")
            continue
        converted = convert(row, value, where)
        inverted = row.kind == "off" and plain(str(key)) != row.key
        values.config[row.key] = (not converted) if inverted else converted


def find_prefix(key: str, keys: Mapping[str, Row]) -> str | None:
    """Keys written with dashes are option names, which may be abbreviated: the one key that `key` begins."""
    if "_" in key:
        return None
    rows = {row.key for name, row in keys.items() if name.startswith(plain(key))}
    return rows.pop() if len(rows) == 1 else None


def file_beside(folder: Path) -> dict[str, str]:
    """The text of configs.yml beside a script, if there is one."""
    path = folder / "configs.yml"
    return {str(path): read_text(path)} if path.is_file() else {}


def _refuse_own(table: Table, script: str, own: Mapping[str, Any]) -> None:
    """Refuse options of ours that would not mean what they mean in `conveyor train`, naming the dialect's option."""
    declared = table.declared(script)
    for name in own:
        rows = [row for row in table if name in row.outcomes]
        mine = [row.flag for row in rows if row in declared]
        flag = find(name).flag
        if mine and name in DEFINING:
            raise UserError(f"there is no option {flag}: it is {' or '.join(mine)} in this program")
        if rows and not mine:
            scripts = dict.fromkeys(f"{one}.py" for row in rows for one in row.scripts)
            raise UserError(f"there is no option {flag} in {script}.py: it belongs to {' and '.join(scripts)}")


def _split_own(
    table: Table, script: str, words: Sequence[str], model: str | None
) -> tuple[list[str], dict[str, Any], set[str]]:
    """Separate our own options, which must be spelled in full, from the words of the dialect."""
    rows = table.declared(script)
    normal: list[str] = []
    own: dict[str, Any] = {}
    switches: set[str] = set()
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, value = word.partition("=")
        if word in ("-h", "--help"):
            switches.add("help")
        elif name.removeprefix("--") in OWN_FLAGS and not any(name in row.names for row in rows):
            switches.add(name.removeprefix("--"))
        elif (spec := _own_spec(name, table, script, model)) is not None:
            if spec.kind.item is bool:
                own[spec.name] = not name.startswith("--no-") if not equals else value
                continue
            taken = [value] if equals else []
            while not equals and queue and not queue[0].startswith("--") and (spec.kind.many or not taken):
                taken.append(queue.pop(0))
            if not taken:
                raise UserError(f"{name} needs a value")
            own[spec.name] = taken if spec.kind.many else taken[0]
        else:
            normal.append(word)
    return normal, own, switches


def _own_spec(name: str, table: Table, script: str, model: str | None) -> Any:
    if not name.startswith("--"):
        return None
    key = plain(name)
    spec = specs().get(key)
    if spec is None and key.startswith("no_"):
        spec = specs().get(key.removeprefix("no_"))
        spec = spec if spec is not None and spec.kind.item is bool else None
    if spec is None:
        return None
    try:
        return None if table.find_flag(name, script, model) is not None else spec
    except UserError:
        return spec


def _canonical(table: Table, script: str, words: Sequence[str], spelled: set[str], model: str | None) -> list[str]:
    """The words with every abbreviated or alternative option name replaced by the listed one."""
    result: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("-") or name == "-":
            result.append(word)
            continue
        if _is_number(name):
            # argparse knows -11 and -0.5 as values, but takes -1/2 and -1e-5 for options unless they follow a "=".
            plain_number = re.fullmatch(r"-\d+|-\d*\.\d+", word)
            result.append(word) if plain_number or not result else result.append(f"{result.pop()}={word}")
            continue
        found = table.find_flag(name, script, model)
        if found is None:
            flags = [each for row in table.declared(script) for each in row.names]
            raise UserError(f"there is no option {name}{did_you_mean(name, flags)}")
        spelled.add(found[1])
        result.append(found[0].flag + equals + value)
    return result


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-\d*\.?\d+(e[-+]?\d+)?(/\d*\.?\d+)?", word, re.IGNORECASE) is not None


def _parser(script: str, rows: list[Row]) -> argparse.ArgumentParser:
    parser = Parser(prog=f"{script}.py", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for row in rows:
        if row.kind in FLAGS:
            parser.add_argument(row.flag, dest=row.key, action="store_const", const=row.kind == "flag")
        elif row.kind in LISTS:
            parser.add_argument(row.flag, dest=row.key, nargs=row.nargs)
        elif row.kind == "switch":
            parser.add_argument(row.flag, dest=row.key, nargs="?", const="true")
        elif row.nargs == "?":
            parser.add_argument(row.flag, dest=row.key, nargs="?", const=row.choices[1])
        else:
            parser.add_argument(row.flag, dest=row.key)
    return parser
