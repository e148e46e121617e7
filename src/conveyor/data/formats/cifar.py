"""CIFAR-10 and CIFAR-100: the binary records and the pickled python batches (which are read, never unpickled)."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from conveyor.data.formats.idx import read_maybe_zipped
from conveyor.data.formats.pickled import read_pickled
from conveyor.errors import UserError
from conveyor.files import read_lines

_PIXELS = 3 * 32 * 32
Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]


def read_binary(path: Path, label_bytes: int) -> Arrays:
    """Images uint8 [N, 32, 32, 3] and labels uint8 [N] of one file of records (label bytes, then 3 planes of 32x32).

    CIFAR-100 has two label bytes, coarse and fine: the last one is used.
    """
    content = read_maybe_zipped(path)
    record = label_bytes + _PIXELS
    if not content or len(content) % record:
        raise UserError(f"{path} has {len(content)} bytes, not a whole number of {record}-byte records: fetch it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return _to_nhwc(records[:, label_bytes:]), records[:, label_bytes - 1].copy()


def read_python(path: Path) -> Arrays:
    """The same from a pickled batch: a dictionary with `data` [N, 3072] and `labels` or `fine_labels`."""
    content = read_pickled(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a CIFAR batch: it holds a {type(content).__name__}, not a dictionary")
    entries = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in content.items()}
    pixels = entries.get("data")
    labels = entries.get("fine_labels", entries.get("labels"))
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise UserError(f"{path} is not a CIFAR batch: it has no array of {_PIXELS} values per image")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        raise UserError(f"{path} is not a CIFAR batch: it has no list with one label per image")
    if not all(isinstance(label, int) and 0 <= label < 256 for label in labels):
        raise UserError(f"{path} has labels that are no small integers")
    return _to_nhwc(pixels), np.array(labels, dtype=np.uint8)


def class_names(folder: Path) -> tuple[str, ...]:
    """Names from `batches.meta.txt`, `fine_label_names.txt` or the pickled `meta`; empty when there are none."""
    for name in ("fine_label_names.txt", "batches.meta.txt"):
        if (folder / name).is_file():
            return tuple(read_lines(folder / name))
    for name, key in (("meta", "fine_label_names"), ("batches.meta", "label_names")):
        if (folder / name).is_file():
            content = read_pickled(folder / name)
            names = (content.get(key) or content.get(key.encode())) if isinstance(content, dict) else None
            if isinstance(names, list):
                return tuple(each.decode("latin-1") if isinstance(each, bytes) else str(each) for each in names)
    return ()


def _to_nhwc(planes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
