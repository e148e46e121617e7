"""The values passed from the disk to the network: raw samples, a micro-batch, and the labels it is trained on."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from conveyor.data.order import Indices

PADDING_LABEL = -100
"""Label of the padding in the last validation batch: no class, and what cross entropy ignores."""


@dataclasses.dataclass(slots=True)
class RawBatch:
    """What a data set returns: `images` uint8 [B, H, W, C] and `labels` int64 [B]; of multi-label sets [B, C], 0 and 1."""

    images: Tensor
    labels: Tensor


@dataclasses.dataclass(slots=True)
class Batch:
    """The samples of one slot, as the loader delivers them."""

    images: Tensor
    """uint8 [B, H, W, C] contiguous; float32 of the same layout when `prepared`."""
    labels: Tensor
    """int64 [B], or [B, C] of a multi-label set; `PADDING_LABEL` from `num_valid` on."""
    samples: Tensor
    """int64 [B]: the samples' numbers in the data set, the key of everything random about them."""
    update: int
    slot: int
    epoch: int
    num_valid: int
    prepared: bool = False
    """True when cropping, flipping and normalising were done on the host."""
    mixed: "list[tuple[Tensor, Tensor]] | None" = None
    """Label terms when mixup or cutmix were done on the host; see `Target`."""

    def __len__(self) -> int:
        return len(self.labels)

    def pinned(self) -> "Batch":
        """The same batch in page-locked memory, from which copies to a GPU run asynchronously."""
        return dataclasses.replace(self, images=self.images.pin_memory(), labels=self.labels.pin_memory())


@dataclasses.dataclass(slots=True)
class Target:
    """The training target: plain labels, or with mixing a weighted sum of them.

    With `mixed` = [(y_1, w_1), ...] the loss is the mean over samples of sum_i w_i[b] * loss(logits[b], y_i[b]); for each
    sample the weights add up to 1. `labels` stays the unmixed label, which accuracy is measured against.
    """

    labels: Tensor
    mixed: list[tuple[Tensor, Tensor]] | None = None
    teacher: Tensor | None = None
    """The logits of a teacher for the same images, float32 [B, C]."""

    def copied(self, copy: Callable[[Tensor], Tensor]) -> "Target":
        """The same target where `copy` brings its tensors."""
        mixed = self.mixed and [(copy(y), copy(w)) for y, w in self.mixed]
        return Target(copy(self.labels), mixed, None if self.teacher is None else copy(self.teacher))


class Dataset(Protocol):
    """Images that can be read in any order."""

    num_classes: int
    class_names: tuple[str, ...]
    chunk: int
    """Samples that one loader thread takes at a time; 0: whole batches, for sets that are only copied."""

    def __len__(self) -> int: ...

    def shape(self, epoch: int) -> tuple[int, int, int]:
        """(height, width, channels) of the images that `read` returns in `epoch`."""
        ...

    def shards(self) -> Sequence[int]:
        """Samples per file in stored order, for shard-wise shuffling; empty when there are no such files."""
        return ()

    def read(self, indices: Indices, epoch: int, out: Tensor | None = None) -> RawBatch:
        """The samples `indices`; images go into `out` (uint8 [B, H, W, C]) when it is given. Safe to call from threads."""
        ...

    def statistics(self) -> dict[str, float]:
        """Seconds of thread time by stage (read, decode, ...) and counts, since the set was opened."""
        return {}
