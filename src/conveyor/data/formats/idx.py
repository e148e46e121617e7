"""The idx format of MNIST: big-endian header (type, sizes), then the values; gzip or not."""

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from conveyor.errors import UserError

_UINT8 = 0x08
LARGEST = 1 << 28
"""Bytes of a file of the small sets, unzipped, at most: CIFAR-100's has 154 million."""


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """The array of unsigned bytes in an idx file; a file of another length or format is an error that names it."""
    content = read_maybe_zipped(path)
    if len(content) < 4 or content[:2] != b"\0\0":
        raise UserError(f"{path} is not an idx file: it does not begin with two zero bytes")
    kind, dimensions = content[2], content[3]
    header = 4 + 4 * dimensions
    if kind != _UINT8 or not 1 <= dimensions <= 4 or len(content) < header:
        raise UserError(f"{path} is not an idx file of bytes: type {kind:#x} with {dimensions} dimensions")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))
    if len(content) - header != prod(shape):
        raise UserError(
            f"{path} has {len(content) - header} values, but its header says {' x '.join(map(str, shape))}: fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def is_zipped(path: Path) -> bool:
    """Whether a file is one of gzip, whatever its name."""
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def read_maybe_zipped(path: Path) -> bytes:
    """The content of a file, unzipped when it is a gzip file; one that is far too long is refused."""
    try:
        with gzip.open(path) if is_zipped(path) else open(path, "rb") as file:
            content: bytes = file.read(LARGEST + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is damaged ({error}): fetch it again") from None
    if len(content) > LARGEST:
        raise UserError(
            f"{path} has more than {LARGEST} bytes of content, which no file of these data sets has: fetch it again"
        )
    return content
