"""`conveyor options WORD`: the options whose names or texts hold a word."""

import argparse
import re
import textwrap

from conveyor.errors import UserError, nearest
from conveyor.options import specs
from conveyor.options.parser import ELSEWHERE, TITLES, explained, width

HELP = "Search the options of train, restore and validate by name and by text."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="WORD", help="All of these must occur; without any, list all.")


def _begins(word: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(word)}", text.lower()) is not None


def run(arguments: argparse.Namespace) -> int:
    words = [word.lower().lstrip("-").replace("_", "-") for word in arguments.words]
    found = {}
    for spec in specs().values():
        names = " ".join(spec.flags)
        if all(word in f"{names} {spec.about.doc} {TITLES[spec.section]}".lower() for word in words):
            # Words of a name, then parts of one, then words of the text.
            found[spec] = sum(
                4 * (f"-{word}" in names) + 2 * (word in names) + _begins(word, spec.about.doc) for word in words
            )
    elsewhere = [f"{flag}: here that is {here}" for flag, here in ELSEWHERE.items() if flag.lstrip("-") in words]
    if not found and not elsewhere:
        close = nearest(words[0], [spec.flag.lstrip("-") for spec in specs().values()])
        hint = f": did you mean {' or '.join(close)}?" if close else "; conveyor options lists all"
        raise UserError(f"no option has {' and '.join(arguments.words)} in its name or text{hint}")
    for line in elsewhere:
        print(line)
    for spec in sorted(found, key=lambda one: -found[one]):
        print(f"{', '.join(spec.flags)}  ({TITLES[spec.section]})")
        print(textwrap.indent(textwrap.fill(explained(spec), min(width(), 80) - 4), "    "))
    return 0
