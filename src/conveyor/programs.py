"""Commands that start a module of this package as a process of its own. No torch here."""

import sys


def of_module(name: str, *words: str, python: str = sys.executable) -> list[str]:
    """`python -m name words...`, without the current folder among the places that modules come from.

    There, a user's random.py or a folder called triton would be imported instead of the library, as it never is in the
    `conveyor` command itself.
    """
    return [python, "-P", "-m", name, *words]
