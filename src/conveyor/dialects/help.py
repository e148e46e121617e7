"""Help in a dialect: its options with their defaults and what they are translated to, for the chosen model."""

import textwrap

from conveyor.dialects.table import FLAGS, LISTS, Row, Table
from conveyor.errors import UserError, did_you_mean

_METAVARS = {"int": "N", "ints": "N [N ...]", "float": "X", "floats": "X [X ...]", "texts": "NAME [NAME ...]"}


def help_text(dialect: str, script: str, family: str | None, table: Table) -> str:
    """The options of `script`, with those of the model `family` where options depend on it."""
    families = dict.fromkeys(name for row in table for name in row.models)
    if family is not None and family not in families:
        raise UserError(f"--model: there is no model {family!r}{did_you_mean(family, families)}")
    shown = {id(row) for row in table.declared(script, family)}
    lines = [f"usage: {script}.py [options]", "", f"The options of the {dialect} program and what they are here."]
    for title, rows in table.groups.items():
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
        "-h, --help for this page" + (" (with --model or --config: the options of that model)." if families else "."),
    ]
    return "\n".join(lines)


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
