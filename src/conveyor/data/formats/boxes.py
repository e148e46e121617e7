"""Bounding boxes of the objects in photographs: read from a CSV file or from TFRecord, and what a crop covers of them.

A box is (xmin, ymin, xmax, ymax) in shares of the image's width and height, float32, as TFRecord files hold it. No torch.
"""

import csv
import dataclasses
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from conveyor.data.formats import tfrecord_dataset
from conveyor.data.formats.tfrecord import index_of, read_record
from conveyor.data.formats.tfrecord_example import Value, decode_example
from conveyor.errors import UserError

T = TypeVar("T")
Boxes = npt.NDArray[np.float32]
"""Boxes of one image, or of many one after the other, [K, 4]."""
Floats = npt.NDArray[np.float64]

CSV_NAME = "imagenet_2012_bounding_boxes.csv"
"""The file beside train/ that holds the boxes of class folders."""
FEATURES = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_SAMPLED_RECORDS = 200


@dataclasses.dataclass(frozen=True, slots=True)
class BoxTable:
    """Boxes of numbered images: number i has `boxes[first[i] : first[i + 1]]`."""

    first: npt.NDArray[np.int64]
    boxes: Boxes

    def of(self, index: int) -> Boxes:
        return self.boxes[self.first[index] : self.first[index + 1]]


@dataclasses.dataclass(frozen=True, slots=True)
class NamedBoxes:
    """The boxes of a CSV file by the name of the image's file."""

    numbers: Mapping[str, int]
    table: BoxTable

    def of(self, name: str) -> Boxes:
        number = self.numbers.get(name)
        return self.table.boxes[:0] if number is None else self.table.of(number)

    def aligned(self, names: Iterable[str]) -> BoxTable:
        """The boxes that have an area, for images number 0, 1, ... of these names; most may have none."""
        # Number -1, a name without boxes, finds the empty group at the end.
        starts = np.append(self.table.first[:-1], 0)
        lengths = np.append(np.diff(self.table.first), 0)
        groups = np.fromiter((self.numbers.get(name, -1) for name in names), np.int64)
        counts = lengths[groups]
        owners = np.repeat(np.arange(len(groups)), counts)
        inside = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        boxes = self.table.boxes[starts[groups][owners] + inside]
        kept = _has_area(boxes)
        return BoxTable(_first(owners[kept], len(groups)), boxes[kept])


NO_BOXES = NamedBoxes({}, BoxTable(np.zeros(1, np.int64), np.empty((0, 4), np.float32)))


def read_boxes(path: Path) -> NamedBoxes:
    """A CSV file of `filename,xmin,ymin,xmax,ymax` lines; a file name may have several."""
    numbers: dict[str, int] = {}
    owners, sides = array("q"), array("f")
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            for row in filter(None, reader):
                box = _sides(row[1:])
                if box is None:
                    raise UserError(
                        f"{path} line {reader.line_num} is not filename,xmin,ymin,xmax,ymax with shares from 0 to 1: "
                        f"{','.join(row)[:100]!r}"
                    )
                owners.append(numbers.setdefault(row[0], len(numbers)))
                sides.extend(box)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} line {reader.line_num + 1} is no text of comma-separated values: {error}") from None
    owner = np.array(owners, np.int64)
    boxes = np.array(sides, np.float32).reshape(-1, 4)[np.argsort(owner, kind="stable")]
    return NamedBoxes(numbers, BoxTable(_first(owner, len(numbers)), boxes))


def boxes_of(features: Mapping[str, Value]) -> Boxes:
    """The boxes of a decoded Example that have an area; ValueError when its lists differ in length."""
    columns = [features.get(name, ()) for name in FEATURES]
    if len({len(column) for column in columns}) > 1:
        raise ValueError("its bounding boxes lack some of their sides")
    boxes = np.array(columns, np.float32).reshape(4, -1).T.clip(0, 1)
    return boxes[_has_area(boxes)]


def has_boxes(folder: Path) -> bool:
    """Whether images below `folder` have boxes: by the presence of the CSV file, or by reading some TFRecord examples.

    Of many records, 200 spread over the files are read, up to the first with a box; of ImageNet's every second has one.
    """
    records = tfrecord_dataset.find_folder(folder)
    if records is None:
        return (folder / CSV_NAME).is_file()
    wanted = frozenset(FEATURES)
    files = _spread(tfrecord_dataset.record_files(records, "train"), _SAMPLED_RECORDS)
    for path in files:
        for offset, length in _spread(index_of(path).tolist(), _SAMPLED_RECORDS // len(files)):
            try:
                if len(boxes_of(decode_example(read_record(path, offset, length), wanted))):
                    return True
            except ValueError:
                continue  # a damaged record is reported when it is read
    return False


def covered(
    crops: Floats, heights: Floats, widths: Floats, objects: Sequence[Boxes | None], share: float
) -> npt.NDArray[np.bool_]:
    """Which of the crops [B, T, 4] (left, top, right, bottom in pixels) of B images hold `share` of an object, [B, T].

    One object is enough; every crop of an image without objects passes.
    """
    counts = np.array([0 if boxes is None else len(boxes) for boxes in objects], np.int64)
    found = np.repeat((counts == 0)[:, None], crops.shape[1], 1)
    if found.all():
        return found
    owners = np.repeat(np.arange(len(counts)), counts)
    given = np.concatenate([boxes for boxes in objects if boxes is not None]).astype(np.float64)
    left, top, right, bottom = (given * np.stack([widths, heights, widths, heights], 1)[owners]).T[:, :, None]
    crop_left, crop_top, crop_right, crop_bottom = np.moveaxis(crops[owners], 2, 0)
    across = np.minimum(right, crop_right) - np.maximum(left, crop_left)
    down = np.minimum(bottom, crop_bottom) - np.maximum(top, crop_top)
    enough = across.clip(0) * down.clip(0) >= share * (right - left) * (bottom - top)
    np.logical_or.at(found, owners, enough)
    return found


def _sides(texts: list[str]) -> tuple[float, float, float, float] | None:
    """Four shares that make a box, or None."""
    try:
        xmin, ymin, xmax, ymax = map(float, texts)
    except ValueError:
        return None
    return (xmin, ymin, xmax, ymax) if 0 <= xmin <= xmax <= 1 and 0 <= ymin <= ymax <= 1 else None


def _has_area(boxes: Boxes) -> npt.NDArray[np.bool_]:
    return (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])


def _first(owners: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Where the boxes of each of `count` owners begin when they are sorted by owner, and their end."""
    return np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))]).astype(np.int64)


def _spread(items: Sequence[T], count: int) -> Sequence[T]:
    """At most `count` of the items, evenly spread."""
    return items[:: max(1, -(-len(items) // max(1, count)))]
