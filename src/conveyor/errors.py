"""The one exception for mistakes a user can mend, and the search for the name they meant."""

import difflib
from collections.abc import Iterable

USER_ERROR, INTERRUPTED = 2, 130
"""Exit codes: of a mistake the user can mend, and after Ctrl-C."""


class UserError(Exception):
    """Something the user can mend: one sentence with the cause and the cure.

    The command line prints the sentence and exits with `USER_ERROR`; a traceback is for our own bugs only.
    """


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def nearest(wrong: str, right: Iterable[str], count: int = 3) -> list[str]:
    """The names in `right` that look most like `wrong`, best first; empty if nothing is near."""
    names = list(right)
    by_folded = {name.lower(): name for name in names}
    found = difflib.get_close_matches(wrong.lower(), by_folded, n=count, cutoff=0.55)
    return [by_folded[name] for name in found]


def did_you_mean(wrong: str, right: Iterable[str]) -> str:
    """`" (did you mean 'momentum'?)"`, or the whole list when nothing is near and the list is short."""
    names = list(right)
    close = nearest(wrong, names)
    if close:
        return f" (did you mean {' or '.join(repr(name) for name in close[:2])}?)"
    if 0 < len(names) <= 12:
        return f" (choose from {', '.join(names)})"
    return ""
