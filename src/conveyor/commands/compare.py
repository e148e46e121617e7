"""`conveyor compare`: whether two runs computed the same, and if not, where they first differ."""

import argparse
import dataclasses
import json

from conveyor.files import user_path
from conveyor.monitor.progress import say

HELP = "Compare two runs: identical, or the first update and tensor that differ."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("one", metavar="RUN", help="The folder of a run.")
    parser.add_argument("other", metavar="RUN", help="The folder of another.")
    parser.add_argument("--json", action="store_true", help="One JSON object.")


def run(arguments: argparse.Namespace) -> int:
    """0: identical; 1: not."""
    from conveyor.run.compare_runs import compare

    found = compare(user_path(arguments.one), user_path(arguments.other))
    if arguments.json:
        print(json.dumps({"identical": found.identical, **dataclasses.asdict(found)}))
    else:
        say(found.sentence())
    return 0 if found.identical else 1
