"""`python3 -m examples_utils benchmark`: the benchmark runner under its original name."""

import functools
from collections.abc import Sequence

from conveyor.cli import exit_code
from conveyor.dialects.running import run_command
from conveyor.errors import UserError


def _run(words: list[str]) -> int:
    """Translate to `conveyor bench run` and run it."""
    translated = translate(words)
    print(" ".join(["conveyor", *translated]), flush=True)
    return run_command(translated)


def translate(words: Sequence[str]) -> list[str]:
    """`benchmark --spec FILE [--benchmark NAME ...]` as `bench run`, which has the same options."""
    if list(words[:1]) != ["benchmark"]:
        raise UserError(f"there is no action {' '.join(words[:1]) or 'given'}: write benchmark --spec FILE")
    return ["bench", "run", *("--benchmark" if word == "--benchmarks" else word for word in words[1:])]


main = functools.partial(exit_code, "examples_utils", _run)
