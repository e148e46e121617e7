"""The number of threads that torch computes with, and whether they still run."""

import contextlib
import os
from collections.abc import Iterator

import torch

from conveyor.errors import UserError

_started = _lost = False


@contextlib.contextmanager
def using_threads(count: int) -> Iterator[None]:
    """`count` threads during the block; a caller from Python gets its own number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        check_fork()
        yield
    finally:
        torch.set_num_threads(before)


def check_fork() -> None:
    """Refuse several threads in a fork of a process that had them: OpenMP would wait for ever for threads that are gone."""
    global _started
    if torch.get_num_threads() == 1:
        return
    if _lost:
        raise UserError(
            "this process was forked from one that had computed with torch, whose threads did not survive that: start it "
            "anew (multiprocessing's spawn, subprocess), or compute with one thread (threads=1, torch.set_num_threads(1))"
        )
    _started = True


def _forked() -> None:
    global _lost
    _lost = _started


os.register_at_fork(after_in_child=_forked)
