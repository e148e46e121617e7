"""One call of C from the bytes of a JPEG to a resized crop in the batch; without it, `decode` does the same in steps.

The C function decodes with the libjpeg-turbo that Pillow brings, or the system's. It is used only after it has decoded a
picture made here to the same pixels as the other decoder. No torch.
"""

import ctypes
import ctypes.util
import functools
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import simplejpeg

from conveyor.data.photo.jpeg import Header, scale_for
from conveyor.numerics.native import build

log = logging.getLogger(__name__)

_OTHERWISE = "photographs are decoded, cropped and resized in separate steps"
_INTERFACES = ((62, 632), (80, 656))
"""Version and size of the decoder's structure in libjpeg-turbo's two binary interfaces, on 64-bit machines."""
_held = threading.local()
_lock = threading.Lock()
Pixels = npt.NDArray[np.uint8]


def crop_into(out: Pixels, data: bytes, header: Header, box: tuple[int, int, int, int]) -> bool:
    """Decode `box` (left, top, right, bottom) and resize it into `out`, uint8 [S, S, C] contiguous, C = 1 or 3.

    False when there is no such function here or the data are unusual; `out` may have been written to. The transform is
    the accurate one and colours are upsampled smoothly: the rougher ways gain nothing on present processors.
    """
    if not header.height_at or not out.flags.c_contiguous:
        return False
    if (found := library()) is None or (pointer := _handle(found).pointer) is None:
        return False
    size, _, channels = out.shape
    left, top, right, bottom = box
    scale = scale_for(right - left, bottom - top, size)
    status: int = found.conveyor_jpeg_crop(
        pointer, data, len(data), left, top, right, bottom, scale, channels, size, out.ctypes.data
    )
    return status == 0


def resize_into(out: Pixels, pixels: Pixels) -> bool:
    """Resize `pixels` [h, w, C] into `out` [S, S, C], both contiguous but for the distance of the rows of `pixels`.

    False when there is no such function here.
    """
    with _lock:
        found = _compiled()
    if found is None:
        return False
    height, width, channels = pixels.shape
    status: int = found.conveyor_resize(
        pixels.ctypes.data, pixels.strides[0], height, width, channels, out.shape[0], out.ctypes.data
    )
    return status == 0


def library() -> ctypes.CDLL | None:
    """The compiled functions bound to a libjpeg-turbo that works, or None."""
    with _lock:
        return _library()


@functools.cache
def _compiled() -> ctypes.CDLL | None:
    found = build.load("jpeg_crop", _OTHERWISE) if ctypes.sizeof(ctypes.c_void_p) == 8 else None
    if found is not None:
        _declare(found)
    return found


@functools.cache
def _library() -> ctypes.CDLL | None:
    found = _compiled()
    if found is None:
        return None
    for path in _decoders():
        for interface, size in _INTERFACES:
            if found.conveyor_jpeg_library(path.encode(), interface, size) and _works(found):
                return found
    log.info("no libjpeg-turbo with partial decoding found: %s", _OTHERWISE)
    return None


def _decoders() -> Iterator[str]:
    """Shared libraries that may be libjpeg-turbo: Pillow's own copy first, it is the newest."""
    import PIL

    beside = Path(PIL.__file__).parent.parent / "pillow.libs"
    yield from (str(path) for path in sorted(beside.glob("libjpeg-*.so*")))
    system = ctypes.util.find_library("jpeg")
    if system is not None:
        yield system


class _Handle:
    """A decoder and its memory, used by one thread and freed with it."""

    def __init__(self, found: ctypes.CDLL) -> None:
        self.pointer: int | None = found.conveyor_jpeg_open()
        self._close = found.conveyor_jpeg_close

    def __del__(self) -> None:
        self._close(self.pointer)


def _handle(found: ctypes.CDLL) -> _Handle:
    handle: _Handle | None = getattr(_held, "handle", None)
    if handle is None:
        handle = _held.handle = _Handle(found)
    return handle


def _works(found: ctypes.CDLL) -> bool:
    """Whether part of a small picture is decoded to the same pixels as by the other decoder."""
    handle = _Handle(found)
    if handle.pointer is None:
        return False
    rows, columns = np.mgrid[0:64, 0:80]
    picture = np.stack([rows * 3, columns * 3, (rows + columns) % 50 * 4], 2).astype(np.uint8)
    data = simplejpeg.encode_jpeg(np.ascontiguousarray(picture), quality=90, colorsubsampling="420")
    out = np.empty((32, 32, 3), np.uint8)
    status: int = found.conveyor_jpeg_crop(handle.pointer, data, len(data), 21, 19, 53, 51, 1, 3, 32, out.ctypes.data)
    return status == 0 and np.array_equal(out, simplejpeg.decode_jpeg(data)[19:51, 21:53])


def _declare(found: ctypes.CDLL) -> None:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    found.conveyor_jpeg_library.argtypes = [ctypes.c_char_p, number, number]
    found.conveyor_jpeg_library.restype = number
    found.conveyor_jpeg_open.argtypes = []
    found.conveyor_jpeg_open.restype = pointer
    found.conveyor_jpeg_close.argtypes = [pointer]
    found.conveyor_jpeg_close.restype = None
    found.conveyor_jpeg_crop.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t, *[number] * 7, pointer]
    found.conveyor_jpeg_crop.restype = number
    found.conveyor_resize.argtypes = [pointer, ctypes.c_size_t, *[number] * 4, pointer]
    found.conveyor_resize.restype = number
