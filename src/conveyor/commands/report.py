"""`conveyor report RUN [RUN ...]`."""

import argparse

from conveyor.options.parser import add_checkpoint

HELP = "Write one self-contained HTML page about a run, or a comparison of several."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="Run folders; several are compared.")
    parser.add_argument(
        "--out",
        "--output",
        dest="output",
        metavar="FILE",
        help="Where the page goes; default: report.html (comparison.html) in the first run.",
    )
    add_checkpoint(parser)
    parser.add_argument("--quiet", action="store_true", help="Do not print the file's name.")


def run(arguments: argparse.Namespace) -> int:
    from conveyor.report.page import write_report

    path = write_report(arguments.runs, arguments.output, arguments.checkpoint)
    if not arguments.quiet:
        print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")
    return 0
