"""The one exception for mistakes a user can mend, and the search for the name they meant."""

import contextlib
import difflib
import importlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

USER_ERROR, INTERRUPTED = 2, 130
"""Exit codes: of a mistake the user can mend, and after Ctrl-C."""


class UserError(Exception):
    """Something the user can mend: one sentence with the cause and the cure.

    The command line prints the sentence and exits with `USER_ERROR`; a traceback is for our own bugs only.
    """


@contextlib.contextmanager
def explained_memory() -> Iterator[None]:
    """A cure in place of the traceback where torch, numpy or a kernel of ours gets no memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        found = re.search(r"tried to allocate [\d.]+ \w+", str(error), re.IGNORECASE)
        if not isinstance(error, MemoryError) and found is None:
            raise
        raise UserError(
            f"there is not enough memory ({found[0].lower() if found else first_line(error)}): choose a smaller "
            "--micro-batch-size or --image-size, or add --recompute"
        ) from error


def needed(module: str, what: str, extra: str) -> Any:
    """The module of a library that only `what` needs, imported."""
    try:
        return importlib.import_module(module)
    except ImportError:
        library = module.partition(".")[0]
        raise UserError(f"{what} needs {library}: pip install 'conveyor[{extra}]'") from None


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def nearest(wrong: str, right: Iterable[str], count: int = 3) -> list[str]:
    """The names in `right` that look most like `wrong`, best first; empty if nothing is near."""
    names = list(right)
    by_folded = {name.lower(): name for name in names}
    found = difflib.get_close_matches(wrong.lower(), by_folded, n=count, cutoff=0.55)
    if not found and len(wrong) > 2:  # onnx: onnxruntime
        found = [name for name in by_folded if name.startswith(wrong.lower())][:count]
    return [by_folded[name] for name in found]


def nothing_at(path: Path | str, give: str) -> UserError:
    """The error about a path that is not there, with what may have been meant: a run by its name, a name beside it."""
    path = Path(path)
    meant = [run for run in [Path("runs") / path] if run.exists()]
    with contextlib.suppress(OSError):
        meant += [path.parent / close for close in nearest(path.name, (one.name for one in path.parent.iterdir()), 1)]
    return UserError(f"there is nothing at {path}{f' (did you mean {meant[0]}?)' if meant else ''}: give {give}")


def did_you_mean(wrong: str, right: Iterable[str]) -> str:
    """`" (did you mean 'momentum'?)"`, or the whole list when nothing is near and the list is short."""
    names = list(right)
    close = nearest(wrong, names)
    if close:
        return f" (did you mean {' or '.join(repr(name) for name in close[:2])}?)"
    if 0 < len(names) <= 12:
        return f" (choose from {', '.join(names)})"
    return ""
