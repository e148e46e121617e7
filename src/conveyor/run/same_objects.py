"""A module and data of the caller's own on several workers: the same on all of them, or refused before the run begins.

Every worker runs the caller's script, so each has a module with random weights of its own and may have been given only a
part of the data, as other programs want it. Here every worker needs the whole set: samples are dealt by their numbers.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from conveyor.checkpoint.state import State
from conveyor.data.batch import Dataset, RawBatch
from conveyor.errors import UserError
from conveyor.run.assemble import UserObjects
from conveyor.world.world import World

COMPARED = 32
"""Samples of each set that are compared: their labels, and their pixels unless the set changes them at random."""
DIFFERENT_DATA = (
    "were given different data: give all of them the whole sets, in one order; samples are dealt to workers by number"
)


def agree(own: UserObjects, world: World) -> None:
    """Every worker calls it; worker 0's weights are the module's initial weights on all."""
    if world.size == 1:
        return
    sets = [one for one in (own.train_data, own.validation_data) if one is not None]
    _compare(world.of_all([_outline_of_data(one) for one in sets]), DIFFERENT_DATA)
    for one in sets:
        pixels = world.of_all(_pixels(one))
        _compare(pixels if all(pixels) else (), DIFFERENT_DATA)
    _compare(world.of_all(_outline(own.model)), "were given modules with different layers")
    if own.model is not None:
        mine = State(model=dict(own.model.state_dict())) if world.is_main else None
        own.model.load_state_dict(world.broadcast_state(mine, 0).model)


def _compare(found: Sequence[Any], what: str) -> None:
    other = next((rank for rank, one in enumerate(found) if one != found[0]), None)
    if other is not None:
        raise UserError(f"workers 0 and {other} {what}")


def _samples(data: Dataset) -> RawBatch:
    chosen = sorted({number * len(data) // COMPARED for number in range(COMPARED)})
    return data.read(np.array(chosen, dtype=np.int64), 0)


def _outline_of_data(data: Dataset) -> list[Any]:
    labels = _samples(data).labels.tolist()
    return [len(data), data.num_classes, list(data.class_names), list(data.shape(0)), labels]


def _pixels(data: Dataset) -> str:
    """A digest of some images; empty if they are not the same when they are read again."""
    found = [hashlib.sha256(_samples(data).images.contiguous().numpy().tobytes()).hexdigest() for _ in range(2)]
    return found[0] if found[0] == found[1] else ""


def _outline(model: nn.Module | None) -> str:
    """A digest of the names, shapes and types of all tensors, and of what the layers say of themselves."""
    if model is None:
        return ""
    tensors = [(name, tuple(one.shape), str(one.dtype)) for name, one in model.state_dict().items()]
    return hashlib.sha256(f"{tensors} {model}".encode()).hexdigest()
