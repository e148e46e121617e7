"""Data of a user's own as a data set: arrays, or anything with `len` and `[i] -> (image, label)`.

Passed from Python, or named as code: `--data pets.py:photos`.
"""

import functools
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from conveyor.data.batch import Dataset, RawBatch
from conveyor.data.catalogue import DatasetInfo
from conveyor.data.formats.memory import MemoryDataset
from conveyor.data.order import Indices
from conveyor.errors import UserError, first_line
from conveyor.models import user_module

OVERSHOOT = 0.25
"""How far a filter such as the bicubic may leave 0..1; the values of a normalised image go further."""
OwnData: TypeAlias = Any
"""(training, validation) or training alone; each a Dataset, a pair of arrays, or a map-style data set."""


def adopt(
    dataset: OwnData, num_classes: int | None = None, name: str = "own", *, multi_label: bool = False
) -> tuple[DatasetInfo, Dataset, Dataset | None]:
    """The numbers of the caller's data and its two parts in the form that the feed reads.

    Arrays are uint8 images [N, H, W, C] or [N, H, W] and integer labels [N], multi-label ones 0 and 1 [N, C]. A map-style data set yields (image, label)
    with an image as uint8 [H, W, C] array, tensor [C, H, W], or PIL image, all of one size.
    """
    parts = (
        dataset if isinstance(dataset, tuple) and len(dataset) == 2 and not _is_array(dataset[0]) else (dataset, None)
    )
    train = _one(parts[0], num_classes, multi_label)
    validation = _one(parts[1], num_classes, multi_label) if parts[1] is not None else None
    height, width, channels = train.shape(0)
    if height != width:
        raise UserError(
            f"images of {height}x{width} pixels: only square ones can be trained on, crop or pad them first"
        )
    info = DatasetInfo(
        name=name,
        train_images=len(train),
        validation_images=len(validation) if validation is not None else 0,
        num_classes=num_classes or max(train.num_classes, validation.num_classes if validation else 0),
        image_size=height,
        channels=channels,
        kind="memory",
        class_names=tuple(train.class_names),
        title="the caller's own data",
    )
    return info, train, validation


@functools.cache
def from_code(name: str, multi_label: bool = False) -> tuple[DatasetInfo, Dataset, Dataset | None]:
    """The data that `FILE.py:NAME` names: such data, or a function without arguments that returns them."""
    found = user_module.attribute(name, "data set")
    if found is None:
        source, _, wanted = name.rpartition(":")
        raise UserError(
            f"there is no {wanted!r} in {source}: give FILE.py:NAME with (training, validation) or a function of them"
        )
    if callable(found) and not hasattr(found, "__getitem__"):
        found = found()
    return adopt(found, name=name, multi_label=multi_label)


def first(dataset: Dataset, count: int) -> Dataset:
    """The first `count` samples of data of the user's own."""
    if count == len(dataset):
        return dataset
    if not isinstance(dataset, MemoryDataset | MapDataset):
        raise UserError(
            f"only the first {count} of {len(dataset)} images are asked for, which a data set with a read() of its own must do"
            " itself: leave out --max-train-images, --max-validation-images and --data-percentage"
        )
    return dataset.limited(count)


def _one(part: Any, num_classes: int | None, multi_label: bool) -> Dataset:
    found = _opened(part, num_classes)
    if isinstance(found, MemoryDataset):
        found = found.with_sets(multi_label)
    if multi_label != getattr(found, "multi_label", False):
        raise UserError(
            "labels of 0 and 1 for each class need --task multi-label, and it needs them: an array [N, C], or a data set "
            "with multi_label = True whose read() gives [B, C]"
        )
    return found


def _opened(part: Any, num_classes: int | None) -> Dataset:
    if hasattr(part, "read") and hasattr(part, "shape") and hasattr(part, "num_classes"):
        found: Dataset = part
        return found
    if isinstance(part, tuple | list) and len(part) == 2 and _is_array(part[0]):
        images, labels = (np.asarray(array.numpy() if isinstance(array, Tensor) else array) for array in part)
        if images.dtype != np.uint8:
            raise UserError(f"images must be 8-bit values (uint8, 0 to 255), not {images.dtype}: convert them first")
        images = images[..., None] if images.ndim == 3 else images
        if images.ndim != 4 or labels.shape[:1] != images.shape[:1] or labels.ndim > 2 or not len(images):
            raise UserError(
                f"images {images.shape} and labels {labels.shape} do not belong together: give [N, H, W, C] or [N, H, W] "
                "images and one label for each"
            )
        if labels.dtype.kind not in "iufb" or not np.array_equal(labels, labels.astype(np.int64)):
            raise UserError("labels must be the numbers of classes (0, 1, 2, ...), not fractions or names")
        count = labels.shape[1] if labels.ndim == 2 else num_classes or int(labels.max()) + 1
        return MemoryDataset(images, labels, count)
    if hasattr(part, "__len__") and hasattr(part, "__getitem__"):
        try:
            return MapDataset(part, num_classes)
        except (TypeError, ValueError, IndexError) as error:
            raise UserError(
                f"a data set of type {type(part).__name__} has no samples (image, label) ({first_line(error)}): give (images, "
                "labels) as arrays, or an object with len() and [i] -> (image, label)"
            ) from error
    raise UserError(
        f"a data set of type {type(part).__name__} cannot be read: give (images, labels) arrays or an object with "
        "len() and [i] -> (image, label)"
    )


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | Tensor)


class MapDataset(Dataset):
    """Any map-style data set of equal-sized images."""

    chunk = 8

    def __init__(self, items: Any, num_classes: int | None, count: int | None = None) -> None:
        self._items = items
        self._count = len(items) if count is None else count
        names = getattr(items, "classes", ())
        self.class_names = tuple(str(name) for name in names)
        labels = getattr(items, "targets", None)
        known = num_classes or len(self.class_names) or (int(max(labels)) + 1 if labels is not None else 0)
        self.num_classes = int(known or 1 + max(int(items[i][1]) for i in range(len(items))))
        self._shape = tuple(to_pixels(items[0][0]).shape)

    def __len__(self) -> int:
        return self._count

    def limited(self, count: int) -> "MapDataset":
        """The first `count` samples."""
        return MapDataset(self._items, self.num_classes, count)

    def shape(self, epoch: int) -> tuple[int, int, int]:
        height, width, channels = self._shape
        return height, width, channels

    def read(self, indices: Indices, epoch: int, out: Tensor | None = None) -> RawBatch:
        """Samples one by one; the caller's own code decides how fast that is."""
        images = out if out is not None else torch.empty(len(indices), *self._shape, dtype=torch.uint8)
        labels = torch.empty(len(indices), dtype=torch.int64)
        for place, index in enumerate(indices):
            image, label = self._items[int(index)]
            pixels = to_pixels(image)
            if tuple(pixels.shape) != self._shape:
                raise UserError(
                    f"image {int(index)} is {tuple(pixels.shape)}, the first one is {self._shape}: make them equal"
                )
            images[place], labels[place] = pixels, int(label)
        return RawBatch(images, labels)


def to_pixels(image: Any) -> Tensor:
    """uint8 [H, W, C] from an array or PIL image [H, W(, C)], or a tensor [C, H, W] (floats are taken as 0..1)."""
    if isinstance(image, Tensor):
        image = image.permute(1, 2, 0) if image.dim() == 3 else image.unsqueeze(-1)
        least, most = (float(value) for value in image.aminmax())
        if image.is_floating_point():
            if not (least >= -OVERSHOOT and most <= 1 + OVERSHOOT):
                raise UserError(
                    f"the data set gives images with values from {least:.4g} to {most:.4g}: fractions must be 0 to 1, before "
                    "any normalisation, which --normalization does"
                )
            image = (image * 255).round().clamp(0, 255)
        elif least < 0 or most > 255:
            raise UserError(
                f"the data set gives images with values from {least:g} to {most:g}: convert them to 8 bits first"
            )
        return image.to(torch.uint8)
    array = np.array(image)
    if array.dtype != np.uint8:
        raise UserError(f"images must be 8-bit values (uint8, 0 to 255), not {array.dtype}: convert them first")
    return torch.from_numpy(array if array.ndim == 3 else array[..., None])
