"""JPEG: the header in Python, and decoding no more of the picture than a crop needs.

A baseline JPEG is a stream of rows of blocks from top to bottom, so a decoder that is told that the picture ends below
the crop reads no further: the height in (a copy of) the header is lowered to the crop's bottom edge plus a margin
of one row of blocks, so that the rows of the crop are the same to the bit as those of a full decoding. Large crops are
decoded at 1/2, 1/4 or 1/8 of the size, where the inverse cosine transform is smaller and so faster than at full size.
Threads decode without a common lock.
"""

import dataclasses
import threading

import numpy as np
import numpy.typing as npt
import simplejpeg

from conveyor.data.photo import exif

Pixels = npt.NDArray[np.uint8]

_SOI = b"\xff\xd8"
_EOI = b"\xff\xd9"
_BASELINE = (0xC0, 0xC1)
_APP1, _SCAN = 0xE1, 0xDA
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_MARGIN_BLOCKS = 1
_MOST_KEPT = 1 << 26
_scratch = threading.local()


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """What the decoder needs to know before decoding."""

    height: int
    width: int
    components: int
    block_height: int
    """Rows that are coded together: 8 or 16."""
    height_at: int
    """Where the two bytes of the height are, 0 when the picture cannot be cut (progressive, several scans)."""
    orientation: int = exif.UPRIGHT


def is_jpeg(data: bytes) -> bool:
    return data[:2] == _SOI


def read_header(data: bytes) -> Header | None:
    """Walk the segments up to the first scan; None for anything unusual, which another decoder may understand."""
    position, frame, end = 2, None, len(data)
    orientation: int | None = None
    if data[:2] != _SOI:
        return None
    while position + 4 <= end:
        if data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        length = data[position + 2] << 8 | data[position + 3]
        if length < 2 or position + 2 + length > end:
            return None
        if marker in _FRAMES:
            if frame is not None:
                return None
            frame = _frame(data, position, marker, length)
            if frame is None:
                return None
        elif marker == _APP1 and orientation is None and data[position + 4 : position + 10] == b"Exif\0\0":
            orientation = exif.orientation_of(data[position + 4 : position + 2 + length])
        elif marker == _SCAN:
            if frame is None:
                return None
            in_one = data[position + 4] == frame.components
            if in_one and orientation in (None, exif.UPRIGHT):
                return frame
            return dataclasses.replace(
                frame, height_at=frame.height_at if in_one else 0, orientation=orientation or exif.UPRIGHT
            )
        position += 2 + length
    return None


def _frame(data: bytes, position: int, marker: int, length: int) -> Header | None:
    if length < 8 or data[position + 4] != 8:
        return None
    height = data[position + 5] << 8 | data[position + 6]
    width = data[position + 7] << 8 | data[position + 8]
    components = data[position + 9]
    if not height or not width or components not in (1, 3, 4) or length != 8 + 3 * components:
        return None
    factors = [data[position + 11 + 3 * i] for i in range(components)]
    vertical = max(factor & 15 for factor in factors)
    if not 1 <= vertical <= 4:
        return None
    block = 8 * vertical if components > 1 else 8
    return Header(height, width, components, block, position + 5 if marker in _BASELINE else 0)


def is_complete(data: bytes) -> bool:
    """Whether the end marker is there: a file cut short lacks it. Some writers add a few bytes after it."""
    return _EOI in data[-64:]


def scale_for(width: float, height: float, size: int) -> int:
    """1, 2, 4 or 8: by how much a crop may be decoded smaller and still be no smaller than `size` x `size`."""
    for scale in (8, 4, 2):
        if width >= size * scale and height >= size * scale:
            return scale
    return 1


def decode_crop(data: bytes, header: Header, box: tuple[int, int, int, int], size: int, grey: bool) -> Pixels:
    """The pixels of `box` (left, top, right, bottom), perhaps scaled down, as a view of this thread's buffer.

    [h, w, 3] or [h, w, 1]; valid until this thread decodes again. Raises ValueError when the data cannot be decoded.
    """
    left, top, right, bottom = box
    scale = scale_for(right - left, bottom - top, size)
    height = header.height
    content: bytes | memoryview = data
    if header.height_at:
        needed = (bottom // header.block_height + 1 + _MARGIN_BLOCKS) * header.block_height
        if needed < height:
            height = needed
            content = _memory("content", len(data)).data
            content[:] = data
            content[header.height_at : header.height_at + 2] = height.to_bytes(2, "big")
    rows, columns = -(-height // scale), -(-header.width // scale)
    channels = 1 if grey else 3
    smaller = {"min_height": rows, "min_width": columns} if scale > 1 else {}
    pixels = simplejpeg.decode_jpeg(
        content,
        colorspace="GRAY" if grey else "RGB",
        buffer=_memory("pixels", rows * columns * channels),
        strict=False,
        **smaller,
    )
    if pixels.shape != (rows, columns, channels):
        raise ValueError(f"decoded to {pixels.shape} instead of {(rows, columns, channels)}")
    crop: Pixels = pixels[top // scale : -(-bottom // scale), left // scale : -(-right // scale)]
    return crop


def _memory(purpose: str, size: int) -> npt.NDArray[np.uint8]:
    """A buffer of this thread, reused: fresh pages would cost a tenth of the decoding time."""
    if size > _MOST_KEPT:
        return np.empty(size, np.uint8)
    held: npt.NDArray[np.uint8] | None = getattr(_scratch, purpose, None)
    if held is None or held.size < size:
        held = np.empty(max(size, 1 << 20), np.uint8)
        setattr(_scratch, purpose, held)
    return held[:size]
