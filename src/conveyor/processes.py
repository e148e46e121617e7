"""Processes of our own: the command that starts a module as one, and an end together with the parent. No torch here."""

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def of_module(name: str, *words: str, python: str = sys.executable) -> list[str]:
    """`python -m name words...`, without the current folder among the places that modules come from.

    There, a user's random.py or a folder called triton would be imported instead of the library, as it never is in the
    `conveyor` command itself.
    """
    return [python, "-P", "-m", name, *words]


def end_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """Ask the system for the signal `how` when the parent is gone, even one that was killed and could not say so.

    Linux only. The setting is kept by `exec` and not inherited by children.
    """
    parent = os.getppid()
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(how))
    if os.getppid() != parent:
        raise SystemExit(1)
