"""`conveyor report RUN [RUN ...]`."""

import argparse

from conveyor.errors import UserError
from conveyor.options.parser import add_checkpoint
from conveyor.remote.mirror import nearby

HELP = "Write one self-contained HTML page about a run, or a comparison of several."
PORT = 8510


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
    parser.add_argument(
        "--watch", action="store_true", help="Serve the page on this machine and refresh it while the run goes on."
    )
    parser.add_argument(
        "--port", type=int, metavar="N", help=f"With --watch: the port of the page, 0 for a free one. [{PORT}]"
    )
    parser.add_argument("--quiet", action="store_true", help="Do not print the file's name.")


def run(arguments: argparse.Namespace) -> int:
    if arguments.watch:
        if arguments.output:
            raise UserError("--watch writes no file: leave out --out, or leave out --watch")
        from conveyor.report.watch import watch

        return watch(arguments.runs, PORT if arguments.port is None else arguments.port, arguments.checkpoint)
    if arguments.port is not None:
        raise UserError("--port belongs to --watch")
    from conveyor.report.page import write_report

    path = write_report(arguments.runs, arguments.output, arguments.checkpoint)
    if not arguments.quiet:
        print(f"{nearby(path)} ({path.stat().st_size / 1000:.0f} kB)")
    return 0
