"""Data sets of encoded images (JPEG and others) of any size, decoded by loader threads into one 8-bit batch."""

import functools
import logging
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from conveyor.data.batch import RawBatch
from conveyor.data.formats.boxes import Boxes
from conveyor.data.order import Indices
from conveyor.data.photo.crops import CropRule
from conveyor.data.photo.decode import AbsentImageError, BadImageError, Encoded
from conveyor.data.progressive_size import image_size_at
from conveyor.errors import UserError
from conveyor.options.data import DataOptions

log = logging.getLogger(__name__)

_SUBSTITUTES = 100


class Fetched(NamedTuple):
    """An encoded image, its class number and, where they are asked for, the boxes of the objects in it.

    `classes` are all of them, where a list says several.
    """

    data: bytes
    label: int
    boxes: Boxes | None = None
    classes: tuple[int, ...] | None = None


class Store(Protocol):
    """Where the bytes are: class folders, TFRecord files, or a cache in front of them."""

    def __len__(self) -> int: ...

    def fetch(self, index: int) -> Fetched:
        """One sample. Safe to call from threads."""
        ...

    def name(self, index: int) -> str:
        """How a message names the sample."""
        ...

    def key(self, index: int) -> str:
        """How lists of images name it: the path relative to the data set."""
        ...

    def shards(self) -> Sequence[int]: ...

    def estimated_bytes(self) -> int:
        """About how much memory all samples take."""
        ...


class EncodedDataset:
    """Reads, crops and resizes; flips, normalisation and mixing come later, on the device."""

    chunk = 8
    draws = True
    """Indices may be numbers of copies (`data.order`): they are what crops are drawn by."""

    def __init__(
        self,
        store: Store,
        options: DataOptions,
        *,
        train: bool,
        crop: str,
        image_size: int,
        channels: int,
        num_classes: int,
        class_names: Sequence[str],
        seed: int,
        count: int | None = None,
        multi_label: bool = False,
    ) -> None:
        self._store = store
        self.multi_label = multi_label
        self._options = options
        self._train = train
        self._crop = crop
        self._image_size = image_size
        self._channels = 1 if channels == 1 else 3
        self._seed = seed
        self._length = min(len(store), count) if count is not None else len(store)
        self.num_classes = num_classes
        self.class_names = tuple(class_names)
        self._lock = threading.Lock()
        self._seconds = {"read": 0.0, "decode": 0.0, "resize": 0.0}
        self._skipped: dict[int, int] = {}

    def __len__(self) -> int:
        return self._length

    def shape(self, epoch: int) -> tuple[int, int, int]:
        size = image_size_at(self._options.progressive_image_size, epoch, self._image_size) if self._train else None
        return (size or self._image_size, size or self._image_size, self._channels)

    def shards(self) -> Sequence[int]:
        return self._store.shards()

    def key(self, index: int) -> str:
        """The sample's name, as `--exclude-images` takes it."""
        return self._store.key(index)

    @functools.cached_property
    def labels(self) -> Tensor:
        """The class of every sample, int64 [N], or its classes, [N, C]; of TFRecord files it takes one pass over them."""
        if self.multi_label and (sets := getattr(self._store, "label_sets", None)) is not None:
            found = torch.zeros(len(self), self.num_classes, dtype=torch.int64)
            for row, classes in zip(found, sets, strict=False):
                row[list(classes)] = 1
            return found
        known = getattr(self._store, "labels", None) or (self._store.fetch(index).label for index in range(len(self)))
        numbers = torch.tensor(list(known)[: len(self)])
        return torch.nn.functional.one_hot(numbers, self.num_classes) if self.multi_label else numbers

    def statistics(self) -> dict[str, float]:
        with self._lock:
            return {**self._seconds, "skipped": float(len(self._skipped))}

    def read(self, indices: Indices, epoch: int, out: Tensor | None = None) -> RawBatch:
        size, _, channels = self.shape(epoch)
        images = out if out is not None else torch.empty(len(indices), size, size, channels, dtype=torch.uint8)
        pixels = images.numpy()
        labels = torch.zeros(len(indices), *([self.num_classes] if self.multi_label else []), dtype=torch.int64)
        started = time.perf_counter()
        found = [self._open(int(index) % self._length) for index in indices]
        reading = time.perf_counter() - started
        rule = (
            CropRule.training(self._options, self._crop, size)
            if self._train
            else CropRule.validation(self._options, size)
        )
        boxes = rule.choose(
            self._seed,
            epoch,
            indices,
            [encoded.height for encoded, _ in found],
            [encoded.width for encoded, _ in found],
            [fetched.boxes for _, fetched in found],
        )
        decoding = resizing = 0.0
        for position, (encoded, fetched) in enumerate(found):
            started = time.perf_counter()
            try:
                resized = encoded.crop_into(pixels[position], boxes[position], bicubic=rule.bicubic)
            except BadImageError as error:
                key = indices[position : position + 1]
                encoded, fetched = self._substitute(int(key[0]) % self._length, error)
                (box,) = rule.choose(self._seed, epoch, key, [encoded.height], [encoded.width], [fetched.boxes])
                resized = encoded.crop_into(pixels[position], box, bicubic=rule.bicubic)
            decoding += time.perf_counter() - started - resized
            resizing += resized
            if self.multi_label:
                labels[position, list((fetched.label,) if fetched.classes is None else fetched.classes)] = 1
            else:
                labels[position] = fetched.label
        with self._lock:
            for stage, seconds in zip(self._seconds, (reading, decoding, resizing), strict=True):
                self._seconds[stage] += seconds
        return RawBatch(images, labels)

    def _open(self, index: int) -> tuple[Encoded, Fetched]:
        try:
            fetched = self._store.fetch(index)
            return Encoded(fetched.data), fetched
        except BadImageError as error:
            return self._substitute(index, error)

    def _substitute(self, index: int, error: BadImageError) -> tuple[Encoded, Fetched]:
        """The next image in stored order that can be decoded: the same choice in every run."""
        if not self._options.skip_bad_images:
            absent = isinstance(error, AbsentImageError)
            what = str(error) if absent else f"cannot decode {self._store.name(index)}: {error}"
            raise UserError(
                f"{what}; mend or remove it, or pass --skip-bad-images (`conveyor data verify` lists all such files)"
            ) from None
        with self._lock:
            known = self._skipped.get(index)
        if known is None:
            instead = "" if self._train else "; the validation counts the image after it twice, under this name too"
            log.warning("skipping %s: %s%s", self._store.name(index), error, instead)
        for step in range(1, _SUBSTITUTES + 1):
            candidate = (index + step) % self._length
            try:
                fetched = self._store.fetch(candidate)
                encoded = Encoded(fetched.data)
                encoded.pixels(self._channels)
            except BadImageError:
                continue
            with self._lock:
                self._skipped[index] = candidate
            return encoded, fetched
        raise UserError(
            f"{self._store.name(index)} and the {_SUBSTITUTES} images after it cannot be decoded: the data are damaged"
        )
