"""EXIF orientation: how the stored rows and columns of a photograph lie in the upright picture. No torch.

The field is read from the bytes (JPEG's APP1 segment, PNG's eXIf chunk, WebP's EXIF chunk), without decoding a pixel;
anything damaged counts as upright. XMP is ignored. TIFF files are rotated by Pillow.
"""

import struct
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", int, float)

UPRIGHT = 1
TAG = 0x0112
_SHORT = 3
_TURNS = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}
"""What makes the stored picture upright: swap rows and columns, then reverse the rows, then reverse the columns."""
_PNG_START = b"\x89PNG\r\n\x1a\n"


def swaps(orientation: int) -> bool:
    """Whether the upright picture's width is the stored one's height."""
    return _TURNS[orientation][0]


def upright(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """A view of [h, w, C] pixels as they should be seen."""
    swap, down, across = _TURNS[orientation]
    turned = pixels.transpose(1, 0, 2) if swap else pixels
    return turned[:: -1 if down else 1, :: -1 if across else 1]


def stored_box(
    box: tuple[Number, Number, Number, Number], orientation: int, width: Number, height: Number
) -> tuple[Number, Number, Number, Number]:
    """Where a box (left, top, right, bottom) of the upright picture of `width` x `height` lies in the stored one."""
    left, top, right, bottom = box
    swap, down, across = _TURNS[orientation]
    if across:
        left, right = width - right, width - left
    if down:
        top, bottom = height - bottom, height - top
    return (top, left, bottom, right) if swap else (left, top, right, bottom)


def orientation_of(block: bytes) -> int:
    """1 to 8 from an EXIF block (a small TIFF file, with or without `Exif\\0\\0` before it)."""
    if block[:6] == b"Exif\0\0":
        block = block[6:]
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    if order is None:
        return UPRIGHT
    try:
        (start,) = struct.unpack_from(f"{order}I", block, 4)
        (count,) = struct.unpack_from(f"{order}H", block, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, values, value = struct.unpack_from(f"{order}HHIH", block, entry)
            if tag == TAG:
                return value if kind == _SHORT and values == 1 and value in _TURNS else UPRIGHT
    except struct.error:  # the block ends before the field
        pass
    return UPRIGHT


def orientation_of_png(data: bytes) -> int:
    """That of the first eXIf chunk, before or after the pixels."""
    position = len(_PNG_START)
    while data.startswith(_PNG_START) and position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"eXIf":
            return orientation_of(data[position + 8 : position + 8 + length])
        position += 12 + length
    return UPRIGHT
