"""The number of threads that torch computes with, and whether they still run."""

import contextlib
import os
from collections.abc import Iterator, Mapping

import torch

from conveyor.errors import UserError

_started = _lost = False


@contextlib.contextmanager
def using_threads(count: int) -> Iterator[None]:
    """`count` threads during the block; a caller from Python gets its own number back."""
    check_environment(count)
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        check_fork()
        yield
    finally:
        torch.set_num_threads(before)


def check_environment(count: int, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse variables with which OpenMP starts fewer threads than it was asked for, always or on a busy machine.

    oneDNN divides its work among those asked for, and its kernels wait for ever for the ones that are missing.
    """
    if count == 1:
        return
    said = {
        name: environment.get(name, "").strip() for name in ("OMP_THREAD_LIMIT", "OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS")
    }
    limit, dynamic, levels = said.values()
    few = {
        "OMP_THREAD_LIMIT": limit.isdecimal() and int(limit) < count,
        "OMP_DYNAMIC": dynamic.lower() == "true",
        "OMP_MAX_ACTIVE_LEVELS": levels == "0",
    }
    found = next((name for name, is_few in few.items() if is_few), None)
    if found is not None:
        raise UserError(
            f"{found}={said[found]} keeps OpenMP from starting {count} threads, and the library's kernels would wait for ever for "
            f"those that are missing: unset {found}, or compute with one thread (threads=1, --threads 1)"
        )


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
