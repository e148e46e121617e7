"""Help in a dialect: its options with their defaults and what becomes of them, for the chosen model."""

import textwrap
from collections.abc import Mapping, Sequence

from conveyor.dialects.table import FLAGS, LISTS, Row, Table

_METAVARS = {"int": "N", "ints": "N [N ...]", "float": "X", "floats": "X [X ...]", "texts": "NAME [NAME ...]"}


def help_text(
    dialect: str, script: str, words: Sequence[str], table: Table, groups: Mapping[str, Sequence[Row]]
) -> str:
    """The options of `script`; options of a model family are shown when `--model` (or the default) chooses it."""
    family = _family(words) if dialect == "tensorflow1" else None
    shown = {id(row) for row in table.declared(script, family)}
    lines = [f"usage: {script}.py [options]", "", f"The options of the {dialect} program and what they are here."]
    for title, rows in groups.items():
        mine = [row for row in rows if id(row) in shown]
        if not mine:
            continue
        heading = f"{title} of {family}" if family and title == "Model options" else title
        lines += ["", f"{heading}:"]
        for row in mine:
            lines += _entry(row)
    lines += [
        "",
        "Further: every option of `conveyor train` under its full name, --dry-run [--json] to see the plan only,",
        "-h, --help for this page (with --model NAME: the options of that model).",
    ]
    return "\n".join(lines)


def _family(words: Sequence[str]) -> str:
    for index, word in enumerate(words):
        if word.startswith("--model="):
            return word.partition("=")[2].lower()
        if word == "--model" and index + 1 < len(words):
            return words[index + 1].lower()
    return "resnet"


def _entry(row: Row) -> list[str]:
    head = ", ".join(row.names)
    if row.choices and row.kind not in LISTS:
        head += " {" + ",".join(str(choice) for choice in row.choices) + "}"
    elif row.kind not in FLAGS and row.kind != "switch":
        head += f" {_METAVARS.get(row.kind, 'TEXT')}"
    about = f"{row.about}; " if row.about else ""
    text = f"{about}here {row.target}" if not row.nothing else f"{about}{row.target}"
    wrapped = textwrap.wrap(text.replace("`", ""), 84, initial_indent=" " * 26, subsequent_indent=" " * 26)
    if len(head) <= 22:
        wrapped[0] = f"  {head:<24}{wrapped[0].strip()}"
        return wrapped
    return [f"  {head}", *wrapped]
