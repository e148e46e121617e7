"""The alternate signal stack of a thread, kept as it is while a library is called.

OpenVINO's CPU plugin gives the thread that compiles its first model an alternate stack (`sigaltstack`) and unmaps that memory
with the plugin, without taking it from the thread again when another thread does so. Python's handlers run on the alternate
stack, so the next signal, Ctrl-C or SIGTERM, would end the process with SIGSEGV.
"""

import contextlib
import ctypes
import sys
from collections.abc import Iterator


class _Stack(ctypes.Structure):
    """stack_t of Linux: address, flags, size."""

    _fields_ = [("ss_sp", ctypes.c_void_p), ("ss_flags", ctypes.c_int), ("ss_size", ctypes.c_size_t)]


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """This thread has the same alternate signal stack after the block as before it, or none."""
    if sys.platform != "linux":
        yield
        return
    libc, before = ctypes.CDLL(None), _Stack()
    libc.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        libc.sigaltstack(ctypes.byref(before), None)
