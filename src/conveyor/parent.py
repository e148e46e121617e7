"""A process that should not outlive the one that started it. No torch here."""

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """Ask the system for the signal `how` when the parent is gone, even one that was killed and could not say so.

    Linux only; the wish survives becoming another program, but is not passed on to children.
    """
    parent = os.getppid()
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(how))
    if os.getppid() != parent:
        raise SystemExit(1)
