"""Data sets small enough to be one array: the embedded digits, MNIST, CIFAR, and generated images."""

import io
from collections.abc import Sequence
from importlib import resources
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from conveyor.data.batch import Dataset, RawBatch
from conveyor.data.catalogue import MADE_UP_IMAGES, DatasetInfo
from conveyor.data.order import Indices
from conveyor.errors import UserError

Pixels = npt.NDArray[np.uint8]


class MemoryDataset(Dataset):
    """Fixed-size images held as uint8 [N, H, W, C]; reading is one gather."""

    chunk = 0

    def __init__(
        self, images: Pixels, labels: npt.NDArray[np.integer], num_classes: int, class_names: Sequence[str] = ()
    ) -> None:
        if images.ndim != 4 or len(images) != len(labels):
            raise ValueError(f"images {images.shape} and labels {labels.shape} do not belong together")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < (num_classes if labels.ndim == 1 else 2):
            raise UserError(
                f"labels run from {labels.min()} to {labels.max()}, but the data set has {num_classes} classes: "
                "the files do not belong to it"
            )
        self.images = torch.from_numpy(np.require(images, requirements=["C", "W"]))
        self.labels = torch.from_numpy(labels.astype(np.int64))
        self.num_classes = num_classes
        self.class_names = tuple(class_names)
        self.source: tuple[str, Sequence[int] | None] = ("validation", None)
        """The split of the files that the images are from, and their numbers there; none: all in order."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def multi_label(self) -> bool:
        """Whether the labels are rows of 0 and 1, [N, C]."""
        return self.labels.dim() == 2

    def with_sets(self, asked: bool) -> Self:
        """If `asked`, with each class number as a row of 0 and 1."""
        if asked and not self.multi_label:
            self.labels = torch.nn.functional.one_hot(self.labels, self.num_classes)
        return self

    def key(self, index: int) -> str:
        """The sample's name, as `--exclude-images` takes it: `train/17`."""
        split, numbers = self.source
        return f"{split}/{index if numbers is None else numbers[index]}"

    def shape(self, epoch: int) -> tuple[int, int, int]:
        _, height, width, channels = self.images.shape
        return height, width, channels

    def read(self, indices: Indices, epoch: int, out: Tensor | None = None) -> RawBatch:
        chosen = torch.from_numpy(np.ascontiguousarray(indices))
        images = torch.index_select(self.images, 0, chosen, out=out) if out is not None else self.images[chosen]
        return RawBatch(images, self.labels[chosen])

    def limited(self, count: int) -> "MemoryDataset":
        """The first `count` samples; shares the memory."""
        found = MemoryDataset(
            self.images[:count].numpy(), self.labels[:count].numpy(), self.num_classes, self.class_names
        )
        found.source = self.source
        return found


class GeneratedDataset(MemoryDataset):
    """Random images made once on the host: truncated normal, mean 127, deviation 60; labels uniform in 0..C-2.

    A pool of a few images stands for the whole set (sample i is pool image i mod P), so that its size costs no memory;
    image and label belong together, so a network can learn them.
    """

    def __init__(self, info: DatasetInfo, num_images: int, image_size: int, channels: int, seed: int) -> None:
        generator = np.random.Generator(np.random.Philox(seed % 2**64))
        pool = min(MADE_UP_IMAGES, max(1, num_images))
        normal = generator.standard_normal((pool, image_size, image_size, channels), dtype=np.float32)
        while (outside := np.abs(normal) > 2).any():
            normal[outside] = generator.standard_normal(int(outside.sum()), dtype=np.float32)
        labels = generator.integers(0, max(1, info.num_classes - 1), pool)
        super().__init__((127 + 60 * normal).clip(0, 255).astype(np.uint8), labels, info.num_classes, info.class_names)
        self._length = num_images

    def __len__(self) -> int:
        return self._length

    def read(self, indices: Indices, epoch: int, out: Tensor | None = None) -> RawBatch:
        return super().read(np.asarray(indices) % len(self.labels), epoch, out)


class SyntheticDataset(Dataset):
    """Placeholder for images generated on the device: batches carry no pixels, so nothing is read or transferred."""

    chunk = 0

    def __init__(self, info: DatasetInfo, num_images: int) -> None:
        self.num_classes = info.num_classes
        self.class_names = info.class_names
        self._length = num_images
        self._channels = info.channels

    def __len__(self) -> int:
        return self._length

    def shape(self, epoch: int) -> tuple[int, int, int]:
        return 0, 0, self._channels

    def read(self, indices: Indices, epoch: int, out: Tensor | None = None) -> RawBatch:
        empty = torch.empty(len(indices), 0, 0, self._channels, dtype=torch.uint8)
        labels = torch.from_numpy(np.asarray(indices, dtype=np.int64) % max(1, self.num_classes - 1))
        return RawBatch(empty if out is None else out, labels)


def embedded_digits(split: str) -> tuple[Pixels, Pixels]:
    """The digits inside the package: images uint8 [N, 8, 8, 1] and labels uint8 [N]."""
    content = resources.files("conveyor.data").joinpath("embedded/digits.npz").read_bytes()
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return arrays[f"{split}_images"][..., None], arrays[f"{split}_labels"]
