"""Processes of our own: the command that starts a module as one, and an end together with the parent. No torch here."""

import contextlib
import ctypes
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PR_SET_PDEATHSIG = 1


def of_module(name: str, *words: str, python: str = sys.executable) -> list[str]:
    """`python -m name words...`, without the current folder among the places that modules come from.

    There, a user's random.py or a folder called triton would be imported instead of the library, as it never is in the
    `conveyor` command itself.
    """
    return [python, "-P", "-m", name, *words]


def this_program(command: Sequence[str]) -> list[str]:
    """`conveyor ...` is the program that is running, whatever the search path finds under that name, or nothing."""
    return of_module(*command) if list(command[:1]) == ["conveyor"] else list(command)


@contextlib.contextmanager
def handling(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """These handlers for the body of a `with` statement, those before them afterwards; only the main thread can set any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def print_any_text() -> None:
    """Let standard output take names that its encoding has no characters for: they are printed as escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def end_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """Ask the system for the signal `how` when the parent is gone, also when it was killed.

    Linux only. The setting is kept by `exec` and not inherited by children.
    """
    parent = os.getppid()
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(how))
    if os.getppid() != parent:
        raise SystemExit(1)
