"""Which sample comes when: a pure function of (seed, epoch), so that a run can start at any update on any layout.

A sample that stands in an epoch more than once has a number of its own each time, `sample + copy * num_images`: the key of
everything random about that copy, of which the remainder is the sample to read.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


class SlotShape(Protocol):
    """The two numbers of a topology that the order needs."""

    @property
    def micro_batch(self) -> int: ...

    @property
    def slots(self) -> int: ...


def epoch_order(
    num_images: int, seed: int, epoch: int, mode: str = "full", *, shards: Sequence[int] = (), window: int = 16
) -> Indices:
    """The permutation of `range(num_images)` in which epoch `epoch` visits the samples, int64 [num_images].

    `full` sorts the samples by a 64-bit hash of (seed, epoch, sample): independent of any library's generator, so a
    checkpoint resumes alike on every version. `shards` shuffles the files (`shards` = samples per file, in stored
    order), then shuffles inside each window of `window` neighbouring files: reads stay within `window` open files.
    `none` is the stored order.
    """
    samples = np.arange(num_images, dtype=np.int64)
    if mode == "none":
        return samples
    if mode == "full" or len(shards) < 2:
        return hashed_order(num_images, seed, epoch, 0)
    if sum(shards) < num_images:
        raise ValueError(f"the shards hold {sum(shards)} samples, fewer than {num_images}")
    starts = np.concatenate([[0], np.cumsum(shards)])
    files = np.argsort(_hash(np.arange(len(shards), dtype=np.int64), seed, epoch, 1), kind="stable")
    parts = []
    for first in range(0, len(files), window):
        inside = np.concatenate([samples[starts[f] : starts[f + 1]] for f in files[first : first + window]])
        parts.append(inside[np.argsort(_hash(inside, seed, epoch, 2), kind="stable")])
    return np.concatenate(parts)


def hashed_order(count: int, *keys: int) -> Indices:
    """A permutation of `range(count)`, the same on every machine and version."""
    return np.argsort(_hash(np.arange(count, dtype=np.int64), *keys), kind="stable").astype(np.int64, copy=False)


def repeated(order: Indices, times: int, global_batch: int) -> Indices:
    """Repeated augmentation: each sample `times` times in the same update, as many positions as before, int64 [N].

    Inside an update all first copies come first, then all second ones, so that copies are far from each other: in other
    slots where there are several, and no neighbours for mixup.
    """
    places = np.arange(len(order), dtype=np.int64)
    copies = places % times
    keys = order[places // times] + copies * len(order)
    return keys[np.lexsort((copies, places // global_batch))]


def balanced_order(labels: Indices, seed: int, epoch: int) -> Indices:
    """As many positions as samples, each class that has samples equally often (+-1), shuffled; int64 [N].

    A class with more samples than positions shows some of them, others in other epochs; one with fewer shows all of them
    again and again. `labels` int64 [N].
    """
    count = len(labels)
    shuffled = epoch_order(count, seed, epoch)
    members = np.split(
        shuffled[np.argsort(labels[shuffled], kind="stable")], np.cumsum(np.unique(labels, return_counts=True)[1])[:-1]
    )
    # Which classes get one position more is another matter in each epoch.
    lucky = epoch_order(len(members), seed, epoch)[: count % len(members)]
    quotas = np.full(len(members), count // len(members))
    quotas[lucky] += 1
    keys = [
        own[(place := np.arange(n)) % len(own)] + place // len(own) * count
        for own, n in zip(members, quotas, strict=True)
    ]
    found = np.concatenate(keys).astype(np.int64, copy=False)
    return found[np.argsort(_hash(np.arange(count, dtype=np.int64), seed, epoch, 3), kind="stable")]


def slot_indices(order: Indices, update_in_epoch: int, slot: int, topology: SlotShape) -> Indices:
    """The samples of slot k of update i: `order[i*G + k*B : i*G + (k+1)*B]`, G = slots * B.

    An epoch longer than the data set (a batch larger than the set, or more updates per epoch) starts over.
    """
    first = (update_in_epoch * topology.slots + slot) * topology.micro_batch
    if first + topology.micro_batch <= len(order):
        return order[first : first + topology.micro_batch]
    return order[np.arange(first, first + topology.micro_batch) % len(order)]


def _hash(values: Indices, *keys: int) -> npt.NDArray[np.uint64]:
    """A 64-bit mix (splitmix64's finaliser) of each value with the keys; distinct values never collide."""
    state = 0
    for key in keys:
        state = _mix_int((state ^ (key & _MASK)) + int(_GOLDEN))
    return _mix((values.astype(np.uint64) ^ np.uint64(state)) + _GOLDEN)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix_int(x: int) -> int:
    return int(_mix(np.array([x & _MASK], dtype=np.uint64))[0])
