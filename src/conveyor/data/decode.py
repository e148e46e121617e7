"""From the bytes of an image file to a crop in the batch: one decoding, one resize, no copy in between."""

import io
import time
import warnings

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from conveyor.data import fused, jpeg
from conveyor.data.crops import Box, Floats
from conveyor.data.jpeg import Header

Pixels = npt.NDArray[np.uint8]

LARGEST_PIXELS = 1 << 28
"""Images beyond this many pixels are taken for damaged or hostile."""


class BadImageError(Exception):
    """An image that cannot be decoded; the message says why, the caller adds which one."""


class Encoded:
    """An image whose size is known and whose pixels are not decoded yet."""

    __slots__ = ("data", "header", "height", "image", "width")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.header: Header | None = None
        self.image: Image.Image | None = None
        header = jpeg.read_header(data) if jpeg.is_jpeg(data) else None
        if header is not None and header.components in (1, 3) and jpeg.is_complete(data):
            self.header = header
            self.height, self.width = header.height, header.width
        else:
            self._open_by_pillow()
        if self.height * self.width > LARGEST_PIXELS:
            raise BadImageError(f"it claims {self.width} x {self.height} pixels")

    def crop(self, box: Floats | Box, size: int, channels: int) -> Pixels:
        """The pixels of `box` (rounded to whole pixels), perhaps already reduced; a view that lives until the next call."""
        left, top, right, bottom = whole_box(box, self.width, self.height)
        if self.header is not None:
            try:
                return jpeg.decode_crop(self.data, self.header, (left, top, right, bottom), size, channels == 1)
            except ValueError:
                self._open_by_pillow()
        return self._by_pillow(channels)[top:bottom, left:right]

    def pixels(self, channels: int) -> Pixels:
        """The whole picture in its full size."""
        return self.crop((0.0, 0.0, self.width, self.height), max(self.width, self.height), channels)

    def crop_into(self, out: Tensor, box: Floats | Box) -> float:
        """The pixels of `box` resized into `out`, uint8 [S, S, C] contiguous; returns the seconds of a separate resize."""
        if self.header is not None:
            whole = whole_box(box, self.width, self.height)
            if fused.crop_into(out, self.data, self.header, whole):
                return 0.0
        pixels = self.crop(box, out.shape[0], out.shape[2])
        started = time.perf_counter()
        resize_into(out, pixels)
        return time.perf_counter() - started

    def _open_by_pillow(self) -> None:
        """PNG and the like under any name, CMYK, odd JPEGs: slower, but Pillow understands them."""
        self.header = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.image = Image.open(io.BytesIO(self.data))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise BadImageError(_reason(error)) from None
        self.width, self.height = self.image.size

    def _by_pillow(self, channels: int) -> Pixels:
        assert self.image is not None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _to_array(self.image, channels)
        except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
            raise BadImageError(_reason(error)) from None


def whole_box(box: Floats | Box, width: int, height: int) -> tuple[int, int, int, int]:
    """The box rounded to whole pixels, at least one wide and high, inside the image."""
    left, right = _interval(float(box[0]), float(box[2]), width)
    top, bottom = _interval(float(box[1]), float(box[3]), height)
    return left, top, right, bottom


def resize_into(out: Tensor, pixels: Pixels) -> None:
    """Bilinear with antialiasing (the same to one level as Pillow's) from [h, w, C] into `out` uint8 [H, W, C]."""
    target = out.permute(2, 0, 1).unsqueeze(0)
    source = torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)
    if source.shape == target.shape:
        target.copy_(source)
        return
    size = [target.shape[2], target.shape[3]]
    torch.ops.aten._upsample_bilinear2d_aa.out(source, size, False, None, None, out=target)


def _interval(low: float, high: float, end: int) -> tuple[int, int]:
    first = min(max(round(low), 0), end - 1)
    return first, min(max(round(high), first + 1), end)


def _to_array(image: Image.Image, channels: int) -> Pixels:
    if image.mode.startswith(("I;16", "I")):
        # 16-bit grey: the high byte; Pillow itself would clip everything above 255.
        high = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        image = Image.fromarray(high)
    converted = image.convert("L" if channels == 1 else "RGB")
    return np.array(converted).reshape(converted.height, converted.width, -1)


def _reason(error: Exception) -> str:
    text = str(error)
    return "it is no image of a known kind" if "cannot identify" in text else text or type(error).__name__
