"""docs/conformance.md: one line per command, kept from earlier runs when only some are run."""

import fcntl
import re
from pathlib import Path

from tests.conformance.cases import NOT_RUN, cases
from tests.conformance.originals import ORIGINALS
from tests.conformance.running import Result, shortened
from tests.conformance.sequences import SEQUENCES
from tests.dialects.command_lines import entries

PAGE = Path(__file__).parent.parent.parent / "docs" / "conformance.md"
HEAD = """# The older programs' commands, run

Every command line that the documents of the four older programs print, run from its folder in `compat/` on small real
files: `make conformance` does it and writes this table. No option is left out of a command; words are appended to shorten
it, and folders, placeholders and foreign hosts are replaced, as the third column says for each row: a row shows that the
changed command runs, not that the printed one was run on the original's data. Where one update takes 8192 images or more, the batch is
lowered to 1024 as well, so that the whole table runs in less than 40 minutes on two cores. A case `...b` is the largest of
the listed batch sizes.
The full text of each command is in `tests/dialects/commands.json`, compared with the documents character by character.

What a person types next (validate, restore, average, export, serve, the same again; with accumulation, stages, replicas and
configurations; on one core and on two) is the list of {sequences} sequences in `tests/conformance/sequences.py`, which
`make conformance` runs too. No step may print a traceback, a result of random weights that was not asked for, or take an
option that changes neither the equivalent command nor a note.

| command | begins with | changed | result | s |
|---|---|---|---|---|
"""
ROW = re.compile(r"^\| `([a-z0-9-]+)` \|.*$", re.MULTILINE)


def write(results: list[Result]) -> None:
    """Put the results into the page; several test processes may do so at once."""
    with open(__file__) as own:
        fcntl.flock(own, fcntl.LOCK_EX)
        _write(results)


def _write(results: list[Result]) -> None:
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    kept = {match[1]: match[0].removesuffix(" |").rsplit(" | ", 2)[1:] for match in ROW.finditer(text)}
    by_id = {case.id: case for case in cases()}
    for result in results:
        said = cell(re.sub(r"(/\S+)+/(runs|data)\S*/", "", result.said))
        kept[result.id] = [f"{'works' if result.ok else 'FAILS'}: {said}", f"{result.seconds:.0f}"]
    lines = []
    for name, case in by_id.items():
        status, seconds = kept.get(name, ["not run yet", ""])
        lines.append(f"| `{name}` | `{begins(case.command)}` | {cell(shortened(case))} | {status} | {seconds} |")
    skipped = [entry for entry in entries() if entry["kind"] in NOT_RUN]
    lines += [f"| `{entry['id']}` | `{begins(entry['printed'])}` | | {NOT_RUN[entry['kind']]} | |" for entry in skipped]
    PAGE.write_text(
        HEAD.replace("{sequences}", str(len(SEQUENCES))) + "\n".join(lines) + "\n" + checks(), encoding="utf-8"
    )


def checks() -> str:
    """The second table: what the older programs' own tests check."""
    lines = ["", "## What their own tests check", ""]
    for program, checked in ORIGINALS.items():
        lines += [f"| {program} | here |", "|---|---|"]
        lines += [f"| {cell(what)} | {evidence_cell(evidence)} |" for what, evidence in checked]
        lines.append("")
    return "\n".join(lines)


def evidence_cell(evidence: str) -> str:
    kind, colon, rest = evidence.partition(": ")
    if colon and kind == "not":
        return f"not checked: {cell(rest)}"
    return f"`{rest}` above" if colon else f"`tests/{evidence}`"


def begins(command: str) -> str:
    short = command if len(command) <= 78 else command[:75].rsplit(" ", 1)[0] + " ..."
    return short.replace("|", "\\|")


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
