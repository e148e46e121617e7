"""Untrusted numbers from requests, as images: shape, type and range are checked, and nothing is guessed silently."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.serve.errors import Refused

DTYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
"""Numeric types of the Open Inference Protocol."""
MOST_DIMENSIONS = 8


def as_images(values: Any, image_shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """uint8 [N, H, W, C] from numbers in 0..255 of any type; an image without the first dimension is a batch of 1.

    Fractions are rounded, as a resized image has them; an array in 0..1 is not an image of this kind, but nearly black as one.
    """
    array = values if isinstance(values, np.ndarray) else from_lists(values)
    if array.dtype.kind not in "uif":
        raise Refused("the array must hold numbers from 0 to 255")
    if array.shape == image_shape:
        array = array[None]
    if array.ndim == 3 and image_shape[2] == 1 and array.shape[1:] == image_shape[:2]:
        array = array[..., None]  # grey images are often sent without their one channel
    if array.ndim != 4 or array.shape[1:] != image_shape or not len(array):
        wanted = ", ".join(str(n) for n in image_shape)
        raise Refused(f"the shape must be [N, {wanted}] (images, height, width, channels), not {list(array.shape)}")
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise Refused("the array holds values that are not finite")
        rounded = np.rint(array)
        if array.max() <= 1 and (array != rounded).any():
            raise Refused(
                "the array holds fractions up to 1: send numbers from 0 to 255, the model normalises them itself"
            )
        array = rounded
    if array.min() < 0 or array.max() > 255:
        raise Refused("the array must hold numbers from 0 to 255; normalisation is done by the model")
    return array.astype(np.uint8)


def from_lists(values: Any) -> NDArray[Any]:
    """The array of numbers in nested lists.

    Anything but numbers is refused before an array is made: numpy gives every element of an array of texts the size of
    the longest, so that a request of a few hundred kilobytes would cost gigabytes.
    """
    level = values if isinstance(values, list) else [values]
    for _ in range(MOST_DIMENSIONS):
        kinds = set(map(type, level))
        if kinds == {list}:
            level = list(chain.from_iterable(level))
        elif kinds <= {int, float}:
            break
        else:
            raise Refused(
                "the numbers do not form a regular array"
                if list in kinds
                else "the array must hold numbers from 0 to 255"
            )
    else:
        raise Refused(f"the array has more than {MOST_DIMENSIONS} dimensions")
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise Refused("the numbers do not form a regular array") from error


def from_bytes(content: bytes | memoryview, datatype: str, shape: Sequence[int]) -> NDArray[Any]:
    """An array from its raw little-endian bytes."""
    if datatype not in DTYPES:
        raise Refused(f"the tensor has the data type {datatype[:20]!r}: UINT8 or another number type is needed")
    checked = checked_shape(shape)
    dtype = np.dtype(DTYPES[datatype]).newbyteorder("<")
    expected = math.prod(checked) * dtype.itemsize
    if len(content) != expected:
        raise Refused(f"the tensor has {len(content)} bytes, but {datatype} {checked} needs {expected}")
    return np.frombuffer(content, dtype).reshape(checked)


def checked_shape(shape: Any) -> list[int]:
    """A list of one to eight sizes of at least 1."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or not 1 <= len(shape) <= MOST_DIMENSIONS:
        raise Refused("the tensor needs a shape: a list of one to eight numbers")
    sizes = list(shape)
    if not all(isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= 1 << 31 for size in sizes):
        raise Refused("the tensor has a shape with something else than positive whole numbers")
    if math.prod(sizes) > 1 << 40:
        raise Refused("the tensor has a shape of more elements than any request could hold")
    return sizes


def split_strings(content: bytes | memoryview, count: int) -> list[bytes]:
    """`count` strings, each behind its length as four little-endian bytes."""
    view, found, position = memoryview(content), [], 0
    for _ in range(count):
        length = int.from_bytes(view[position : position + 4], "little")
        if position + 4 > len(view) or position + 4 + length > len(view):
            raise Refused("the strings are cut off: each needs its length in four bytes before it")
        found.append(bytes(view[position + 4 : position + 4 + length]))
        position += 4 + length
    if position != len(view):
        raise Refused(f"{len(view) - position} bytes are left behind the last string")
    return found


def join_strings(strings: Iterable[bytes]) -> bytes:
    """The inverse of `split_strings`."""
    return b"".join(len(string).to_bytes(4, "little") + string for string in strings)
