"""Where encoded images come from: class folders, TFRecord files, and a cache of bytes in memory."""

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil

from conveyor.data.formats.boxes import FEATURES, Boxes, BoxTable, NamedBoxes, boxes_of
from conveyor.data.formats.listing import Listing
from conveyor.data.formats.tfrecord import index_files, read_record
from conveyor.data.formats.tfrecord_example import decode_example
from conveyor.data.photo.decode import AbsentImageError
from conveyor.data.photo.encoded import Fetched, Store
from conveyor.errors import UserError
from conveyor.files import read_regular
from conveyor.options.units import size_in_bytes

log = logging.getLogger(__name__)

_SAMPLED_FILES = 200
_OPEN_FILES = 256
"""Packed files up to which all stay open; of more, each is opened for each image, as class folders are."""


class _ListedStore:
    """What images of a listing have in common, wherever their bytes are."""

    def __init__(self, listing: Listing, split: str) -> None:
        self._files = listing.files.get(split, ())
        if not self._files:
            raise UserError(f"{listing.root} has no images for {split}: give another folder with --data-dir")
        self.label_sets = listing.label_sets.get(split)

    def __len__(self) -> int:
        return len(self._files)

    @property
    def labels(self) -> list[int]:
        """The class of every sample."""
        return [label for _, label in self._files]

    def key(self, index: int) -> str:
        return self._files[index][0]

    def _fetched(self, index: int, data: bytes, boxes: Boxes | None = None) -> Fetched:
        return Fetched(data, self._files[index][1], boxes, self.label_sets[index] if self.label_sets else None)


class FolderStore(_ListedStore):
    """One file per image, of class folders or a list; with `boxes`, those of the objects in them, by the files' names."""

    def __init__(self, listing: Listing, split: str, boxes: NamedBoxes | None = None) -> None:
        super().__init__(listing, split)
        self._root = listing.root
        self._prefix = f"{str(listing.root).rstrip('/')}/"
        self._boxes: BoxTable | None = None
        if boxes is not None:
            self._boxes = boxes.aligned(relative.rpartition("/")[2] for relative, _ in self._files)
            if not len(self._boxes.boxes):
                raise UserError(
                    f"none of the images for {split} in {listing.root} has a bounding box: give --crop-overlap 0"
                )

    def fetch(self, index: int) -> Fetched:
        relative = self.key(index)
        try:
            data = read_regular(relative if relative[0] == "/" else f"{self._prefix}{relative}")
        except OSError as error:
            kind = AbsentImageError if isinstance(error, FileNotFoundError) else UserError
            raise kind(f"cannot read {self._root / relative}: {error.strerror}") from None
        return self._fetched(index, data, None if self._boxes is None else self._boxes.of(index))

    def name(self, index: int) -> str:
        return str(self._root / self.key(index))

    def shards(self) -> Sequence[int]:
        return ()

    def estimated_bytes(self) -> int:
        sampled = self._files[:: max(1, len(self) // _SAMPLED_FILES)]
        return sum(_size(self._root / relative) for relative, _ in sampled) * len(self) // len(sampled)


def _size(path: Path) -> int:
    """Bytes of a file; 0 for a broken link, which is reported when it is read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


class PackedStore(_ListedStore):
    """Images inside tar files, or in the plain copies of parquet files, at known places."""

    def __init__(self, listing: Listing, split: str) -> None:
        super().__init__(listing, split)
        self._packs, self._places = listing.packs[split], listing.places[split]
        kept = self._packs if len(self._packs) <= _OPEN_FILES else ()
        self._open = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in kept]

    def fetch(self, index: int) -> Fetched:
        pack, first, length = self._places[index].tolist()
        if self._open:
            data = os.pread(self._open[pack], length, first)
        else:
            with open(self._packs[pack], "rb", buffering=0) as file:
                data = os.pread(file.fileno(), length, first)
        if len(data) < length:
            raise UserError(f"{self._packs[pack]} ends inside {self.key(index)}: fetch the file again")
        return self._fetched(index, data)

    def name(self, index: int) -> str:
        return self.key(index)

    def shards(self) -> Sequence[int]:
        return [int(count) for count in np.bincount(self._places[:, 0], minlength=len(self._packs))]

    def estimated_bytes(self) -> int:
        return int(self._places[:, 2].sum())

    def __del__(self) -> None:
        for handle in getattr(self, "_open", ()):
            os.close(handle)


class RecordStore:
    """Images inside TFRecord files, any of them reachable through the files' index.

    `image/encoded` with `image/class/label` counted from 1 (ImageNet's layout), or `image` with `label` from 0 (TFDS).
    With `boxes`, the objects in them too: they come with the record, so nothing is read for them alone.
    """

    _WANTED = frozenset(("image/encoded", "image/class/label", "image", "label"))

    def __init__(self, files: list[Path], boxes: bool = False) -> None:
        self._boxes = boxes
        self._wanted = self._WANTED | set(FEATURES) if boxes else self._WANTED
        self._files = files
        indexes = index_files(files)
        self._counts = [len(offsets) for offsets in indexes]
        self._where = np.concatenate(indexes) if indexes else np.empty((0, 2), np.int64)
        self._first = np.concatenate([[0], np.cumsum(self._counts)])

    def __len__(self) -> int:
        return len(self._where)

    def fetch(self, index: int) -> Fetched:
        path, offset, length = self._place(index)
        data = read_record(path, offset, length)
        try:
            features = decode_example(data, self._wanted)
            boxes = boxes_of(features) if self._boxes else None
        except ValueError as error:
            raise UserError(f"{self.name(index)} is no Example ({error}): build the file again") from None
        for image, label, first in (("image/encoded", "image/class/label", 1), ("image", "label", 0)):
            if features.get(image) and features.get(label):
                content, number = features[image][0], features[label][0]
                if isinstance(content, bytes) and isinstance(number, int):
                    return Fetched(content, number - first, boxes)
        raise UserError(f"{self.name(index)} has no image/encoded and image/class/label: these are other data")

    def name(self, index: int) -> str:
        path, offset, _ = self._place(index)
        return f"record at byte {offset} of {path}"

    def key(self, index: int) -> str:
        return self.name(index)

    def shards(self) -> Sequence[int]:
        return self._counts

    def estimated_bytes(self) -> int:
        return int(self._where[:, 1].sum())

    def _place(self, index: int) -> tuple[Path, int, int]:
        file = int(np.searchsorted(self._first, index, side="right")) - 1
        offset, length = self._where[index]
        return self._files[file], int(offset), int(length)


class CachedStore:
    """Keeps the bytes that were read, up to a budget; what does not fit is read again each time."""

    def __init__(self, store: Store, budget: int) -> None:
        self._store = store
        self._budget = budget
        self._held: dict[int, Fetched] = {}
        self._used = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._store)

    def fetch(self, index: int) -> Fetched:
        found = self._held.get(index)
        if found is not None:
            return found
        found = self._store.fetch(index)
        with self._lock:
            if index not in self._held and self._used + len(found.data) <= self._budget:
                self._held[index] = found
                self._used += len(found.data)
        return found

    def __getattr__(self, name: str) -> Any:
        """Everything else as the store has it: names, labels, shards."""
        return getattr(self._store, name)

    @property
    def used(self) -> int:
        """Bytes held now."""
        return self._used


def with_cache(store: Store, choice: str) -> Store:
    """`store` behind a cache as `--data-cache` says: auto, off, or a budget such as 8GiB.

    auto: when all of it, once in each worker of this machine, takes at most half of the memory that is free.
    """
    if choice == "off":
        return store
    if choice != "auto":
        return cast(Store, CachedStore(store, size_in_bytes(choice)))
    workers = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    total = store.estimated_bytes()
    free = psutil.virtual_memory().available
    if total * workers * 2 > free:
        log.info("the images (%.1f GB) are not kept in memory (%.1f GB free)", total / 1e9, free / 1e9)
        return store
    return cast(Store, CachedStore(store, total + total // 10))
