"""Data sets that TensorFlow Datasets has prepared: `NAME/VERSION/NAME-train.tfrecord-00000-of-00001` and the like.

Their examples hold the image as PNG or JPEG under `image` and the class, counted from 0, under `label`; `label.labels.txt`
names the classes and `dataset_info.json` counts the examples. Its other file format, ArrayRecord, is not read. No torch.
"""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from conveyor.data.formats.tfrecord import index_files, read_record
from conveyor.data.formats.tfrecord_example import decode_example
from conveyor.errors import UserError
from conveyor.files import parse_json

NAMES = {
    "mnist": "mnist",
    "fashion-mnist": "fashion_mnist",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "imagenet": "imagenet2012",
}
"""Our name of a set and theirs."""
_SPLITS = {"train": "train", "validation": "test"}

Pixels = npt.NDArray[np.uint8]


def folders(name: str, root: Path) -> Iterator[Path]:
    """Where a prepared copy of our set `name` may be: below a data folder, the set's or the version's own; newest first."""
    theirs = NAMES[name]
    for parent in (root / theirs, root / "tensorflow_datasets" / theirs, root if root.name == theirs else None):
        if parent is not None and parent.is_dir():
            yield from sorted((path for path in parent.iterdir() if _version(path)), key=_version, reverse=True)
    if _version(root) and root.parent.name == theirs:
        yield root


def small_files(name: str, folder: Path) -> dict[str, Path]:
    """The files of a small set in a version's folder, by their names; empty when some are missing."""
    theirs = NAMES[name]
    found: dict[str, Path] = {}
    for split in _SPLITS.values():
        files = {path.name: path for path in sorted(folder.glob(f"{theirs}-{split}.tfrecord-*-of-*"))}
        totals = {path.rsplit("-", 1)[-1] for path in files}
        if len(totals) != 1 or len(files) != int(totals.pop()):
            return {}
        found |= files
    return found


def read_small(name: str, files: dict[str, Path], split: str) -> tuple[Pixels, Pixels]:
    """Images uint8 [N, H, W, C] and labels uint8 [N]; every image is decoded."""
    from PIL import Image

    chosen = [path for file, path in files.items() if f"-{_SPLITS[split]}." in file]
    images: list[Pixels] = []
    labels: list[int] = []
    for path, index in zip(chosen, index_files(chosen), strict=True):
        for offset, length in index.tolist():
            data = read_record(path, offset, length)
            try:
                features = decode_example(data, frozenset(("image", "label")))
                content, label = (features.get(key) or [None] for key in ("image", "label"))
                if not isinstance(content[0], bytes) or not isinstance(label[0], int) or not 0 <= label[0] < 256:
                    raise ValueError("no image and label")
                with Image.open(io.BytesIO(content[0])) as image:
                    images.append(np.asarray(image))
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                raise UserError(
                    f"record at byte {offset} of {path} is none of {name} ({error}): prepare it again"
                ) from None
            labels.append(label[0])
    if len({image.shape for image in images}) != 1:
        raise UserError(f"the images in {chosen[0].parent} differ in size, so they are not those of {name}")
    stacked = np.stack(images)
    return (stacked if stacked.ndim == 4 else stacked[..., None]), np.array(labels, np.uint8)


def counts(folder: Path) -> dict[str, int] | None:
    """Examples by split as `dataset_info.json` counts them; None without it."""
    try:
        content = parse_json((folder / "dataset_info.json").read_text(encoding="utf-8"))
        return {str(split["name"]): sum(int(length) for length in split["shardLengths"]) for split in content["splits"]}
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _version(path: Path) -> tuple[int, ...]:
    """(3, 0, 2) of a folder called 3.0.2, else ()."""
    parts = path.name.split(".")
    return tuple(int(part) for part in parts) if len(parts) == 3 and all(part.isdecimal() for part in parts) else ()
