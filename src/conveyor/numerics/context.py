"""What the layers of a model must know about the pass they are in, without being told through every call.

Two things: which micro-batch is computed (it keys dropout and stochastic rounding) and whether norm statistics are
taken. Both are context variables, so threads do not disturb each other and recomputation can bring back the state of
the first pass. A compiler cannot read these: what a norm asks for is pinned in plain variables around a compiled call.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch.compiler import is_compiling

from conveyor.numerics.keyed import state_of


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
_watchers = 0
"""Who looks at single layers. Plain: passes repeated by a backward pass, in a thread of its own, must see it too."""
_pinned = (1, False)
"""(norm_batches, statistics_are_frozen) of the compiled call that is being made."""


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
    """Context: everything random inside is drawn for this micro-batch (or for these, when several form one batch).

    Also what layers of others draw from torch's global generator for the CPU.
    """
    slots = (slot,) if isinstance(slot, int) else tuple(slot)
    torch.default_generator.manual_seed(state_of(seed, "torch", update, *slots[:1]) >> 1)
    return use(Key(seed, update, slots, norm_batches))


def norm_batches() -> int:
    """See `Key.norm_batches`; 1 without a key."""
    if is_compiling():
        return _pinned[0]
    key = current()
    return 1 if key is None else key.norm_batches


def statistics_are_frozen() -> bool:
    """Whether a training forward must leave the gathered norm statistics alone."""
    return _pinned[1] if is_compiling() else _frozen.get()


@contextmanager
def pinned() -> Iterator[None]:
    """Inside, compiled code sees `norm_batches` and `statistics_are_frozen` as they are now. One thread at a time."""
    global _pinned
    before, _pinned = _pinned, (norm_batches(), statistics_are_frozen())
    try:
        yield
    finally:
        _pinned = before


def is_layer_by_layer() -> bool:
    """Whether somebody looks at the results of single layers, so that nothing may be compiled."""
    return _watchers > 0


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """Inside, compiled blocks run as they were written."""
    global _watchers
    _watchers += 1
    try:
        yield
    finally:
        _watchers -= 1


@contextmanager
def frozen_statistics() -> Iterator[None]:
    """Inside, a training forward adds nothing to the pending statistics (the second pass of recomputation)."""
    token = _frozen.set(True)
    try:
        yield
    finally:
        _frozen.reset(token)
