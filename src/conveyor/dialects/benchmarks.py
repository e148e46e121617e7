"""`python3 -m examples_utils benchmark`: the benchmark runner under its original name."""

import argparse
from collections.abc import Sequence

from conveyor.dialects.running import exit_code, run_command
from conveyor.options.parser import Parser


def main(argv: Sequence[str] | None = None) -> int:
    """Translate to `conveyor bench run` and run it; returns the exit code."""
    return exit_code("examples_utils", _run, argv)


def _run(words: list[str]) -> int:
    translated = translate(words)
    print(" ".join(["conveyor", *translated]), flush=True)
    return run_command(translated)


def translate(words: Sequence[str]) -> list[str]:
    """`benchmark --spec FILE [--benchmark NAME ...]` as `bench run` of ours."""
    parser: argparse.ArgumentParser = Parser(prog="examples_utils")
    parser.add_argument("action", choices=("benchmark",), help="run the benchmarks of a file")
    parser.add_argument("--spec", required=True, help="benchmarks.yml")
    parser.add_argument("--benchmark", "--benchmarks", nargs="+", default=[], help="only these")
    parser.add_argument("--small", action="store_true", help="the size that a laptop finishes")
    known = parser.parse_args(list(words))
    result = ["bench", "run", "--spec", known.spec]
    if known.benchmark:
        result += ["--benchmark", *known.benchmark]
    return [*result, "--small"] if known.small else result
