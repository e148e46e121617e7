"""What the layers of a model must know about the pass they are in, without being told through every call.

Two things: which micro-batch is computed (it keys dropout and stochastic rounding) and whether norm statistics are
taken. Both are context variables, so threads do not disturb each other and recomputation can bring back the state of
the first pass.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """Which micro-batch is being computed; several slots when their samples stand one behind the other in one batch."""

    seed: int
    update: int
    slots: tuple[int, ...]
    norm_batches: int = 1
    """Into how many equal parts batch norms cut the batch; each part has statistics of its own."""


_key: ContextVar[Key | None] = ContextVar("micro_batch", default=None)
_frozen: ContextVar[bool] = ContextVar("statistics_are_frozen", default=False)


def current() -> Key | None:
    """The key in force; None: random numbers come from torch's global generator."""
    return _key.get()


@contextmanager
def use(key: Key | None) -> Iterator[None]:
    """Run with `key`."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


def keyed(seed: int, update: int, slot: int | Sequence[int], *, norm_batches: int = 1) -> AbstractContextManager[None]:
    """Context: everything random inside is drawn for this micro-batch (or for these, when several form one batch)."""
    return use(Key(seed, update, (slot,) if isinstance(slot, int) else tuple(slot), norm_batches))


def statistics_are_frozen() -> bool:
    """Whether a training forward must leave the gathered norm statistics alone."""
    return _frozen.get()


@contextmanager
def frozen_statistics() -> Iterator[None]:
    """Inside, a training forward adds nothing to the pending statistics (the second pass of recomputation)."""
    token = _frozen.set(True)
    try:
        yield
    finally:
        _frozen.reset(token)
