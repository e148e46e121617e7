"""Class folders into TFRecord files of the standard layout: shuffled once, cut into shards, written in parallel.

A shard is written under another name and renamed when it is complete, so the work can be stopped and started again:
shards that are there with the right number of records are kept.
"""

import dataclasses
import io
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from conveyor.data.formats import folders, tfrecord_dataset
from conveyor.data.formats.boxes import FEATURES, NO_BOXES, NamedBoxes
from conveyor.data.formats.listing import Listing
from conveyor.data.formats.tfrecord import scan, write_records
from conveyor.data.formats.tfrecord_example import Value, encode_example
from conveyor.data.order import epoch_order
from conveyor.data.photo import jpeg
from conveyor.data.photo.decode import BadImageError, Encoded
from conveyor.errors import UserError
from conveyor.files import read_lines, write_atomically
from conveyor.monitor.progress import Bar, track

_QUALITY = 95


@dataclasses.dataclass(frozen=True, slots=True)
class BuildOptions:
    """How the files are cut and what goes into them besides images and labels."""

    train_shards: int = tfrecord_dataset.STANDARD_SHARDS["train"]
    validation_shards: int = tfrecord_dataset.STANDARD_SHARDS["validation"]
    threads: int = 8
    seed: int = 12345
    class_texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Readable text for each class folder's name."""
    boxes: NamedBoxes = NO_BOXES


def build_tfrecords(source: Path, target: Path, options: BuildOptions) -> dict[str, int]:
    """Write the files; returns the number of images of each split."""
    if folders.is_plain(source):
        raise UserError(
            f"{source} has class folders alone, and which images are for training is not said: put them into {source}/train, "
            f"and those for validation into {source}/validation"
        )
    listing = folders.scan(source)
    target.mkdir(parents=True, exist_ok=True)
    for leftover in target.glob(".*-of-*.tmp"):
        leftover.unlink()
    counts = {}
    for split, wanted in (("train", options.train_shards), ("validation", options.validation_shards)):
        counts[split] = listing.count(split)
        if counts[split]:
            _build_split(listing, split, target, min(wanted, counts[split]), options)
    write_atomically(target / "labels.txt", "".join(f"{name}\n" for name in listing.classes))
    content = {
        "train_images": counts["train"],
        "validation_images": counts["validation"],
        "classes": list(listing.classes),
    }
    write_atomically(target / tfrecord_dataset.SUMMARY, json.dumps(content, indent=1) + "\n")
    return counts


def read_class_texts(path: Path) -> dict[str, str]:
    """Lines of a class folder's name, a space or tab, and its text."""
    pairs = (line.split(maxsplit=1) for line in read_lines(path))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _build_split(listing: Listing, split: str, target: Path, shards: int, options: BuildOptions) -> None:
    files = listing.files[split]
    order = epoch_order(len(files), options.seed, 0, "full" if split == "train" else "none")
    bounds = np.linspace(0, len(files), shards + 1).astype(int)

    def build(shard: int) -> None:
        path = target / tfrecord_dataset.shard_name(split, shard, shards)
        mine = [files[i] for i in order[bounds[shard] : bounds[shard + 1]]]
        if _is_done(path, len(mine)):
            bar.advance(len(mine))
            return
        write_records(path, _records(listing, mine, options, bar))

    with track(len(files), f"Build {split}") as bar, ThreadPoolExecutor(options.threads) as pool:
        pending = [pool.submit(build, shard) for shard in range(shards)]
        try:
            for task in pending:
                task.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _is_done(path: Path, count: int) -> bool:
    try:
        return path.is_file() and len(scan(path)) == count
    except UserError:
        return False


def _records(listing: Listing, files: list[tuple[str, int]], options: BuildOptions, bar: Bar) -> Iterator[bytes]:
    for relative, label in files:
        path = listing.root / relative
        try:
            yield encode_example(features_of(path, label, listing.classes[label], options))
        except BadImageError as error:
            raise UserError(
                f"cannot decode {path}: {error}; mend or remove it (`conveyor data verify` lists all)"
            ) from None
        bar.advance()


def features_of(path: Path, label: int, class_name: str, options: BuildOptions) -> dict[str, Value]:
    """The features of one image; other formats and CMYK become RGB JPEG, as readers of these files expect."""
    data = path.read_bytes()
    image = Encoded(data)
    header = jpeg.read_header(data) if jpeg.is_jpeg(data) else None
    height, width = image.height, image.width
    if header is None or header.components == 4:
        data = _as_jpeg(image)
    elif not jpeg.is_complete(data):
        raise BadImageError("the file ends too early")
    else:  # its bytes are kept, orientation included: readers that ignore it get the stored rows and columns
        height, width = header.height, header.width
    features: dict[str, Value] = {
        "image/encoded": [data],
        "image/class/label": [label + 1],
        "image/class/synset": [class_name.encode()],
        "image/class/text": [options.class_texts.get(class_name, class_name).encode()],
        "image/height": [height],
        "image/width": [width],
        "image/colorspace": [b"RGB"],
        "image/channels": [3],
        "image/format": [b"JPEG"],
        "image/filename": [path.name.encode()],
    }
    boxes = options.boxes.of(path.name)
    if len(boxes):
        features |= {name: column.tolist() for name, column in zip(FEATURES, boxes.T, strict=True)}
        features["image/object/bbox/label"] = [label + 1] * len(boxes)
    return features


def _as_jpeg(image: Encoded) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image.pixels(3))).save(buffer, "JPEG", quality=_QUALITY, subsampling=0)
    return buffer.getvalue()
