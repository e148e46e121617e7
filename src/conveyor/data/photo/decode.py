"""From the bytes of an image file to an upright crop: the one decoder of training, validation, prediction and serving.

One decoding, one resize, no copy in between; orientation as EXIF says. No torch: the server decodes with it too.
"""

import io
import time
import warnings
from typing import cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from conveyor.data.photo import exif, fused, jpeg
from conveyor.data.photo.centre import Box, Floats
from conveyor.data.photo.jpeg import Header
from conveyor.data.photo.resize import bicubic_into, resize_into
from conveyor.errors import UserError, first_line

Pixels = npt.NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that are read, recognised by content and not by file name; Pillow's other decoders are disabled."""
FULL_SIZE = 1 << 30
"""An output size so large that no picture is reduced while it is decoded."""
LARGEST_PIXELS = 1 << 28
"""Images beyond this many pixels are taken for damaged or hostile."""


class BadImageError(Exception):
    """An image that cannot be decoded; the message says why, the caller adds which one."""


class AbsentImageError(UserError, BadImageError):
    """An image whose file is not there; the message says which one."""


class TooLargeError(BadImageError):
    """An image with too many pixels."""


class Encoded:
    """An image whose size is known and whose pixels are not decoded yet; `height` and `width` are those of it upright."""

    __slots__ = ("data", "header", "height", "image", "orientation", "width")

    def __init__(self, data: bytes, largest: int = LARGEST_PIXELS) -> None:
        self.data = data
        self.image: Image.Image | None = None
        header = jpeg.read_header(data) if jpeg.is_jpeg(data) else None
        self.header: Header | None = header
        self.orientation = header.orientation if header is not None else exif.UPRIGHT
        if header is not None:
            self.width, self.height = header.width, header.height
        if header is None or header.components == 4 or not jpeg.is_complete(data):
            self._open_by_pillow()
        if self.height * self.width > largest:
            raise TooLargeError(f"it has {self.width} x {self.height} pixels, at most {largest} are accepted")
        if exif.swaps(self.orientation):
            self.width, self.height = self.height, self.width

    @classmethod
    def of_picture(cls, picture: Image.Image) -> "Encoded":
        """From a Pillow image; its EXIF orientation is applied as that of a file."""
        made = cls.__new__(cls)
        made.data, made.image, made.header = b"", picture, None
        made.width, made.height = picture.size
        made.orientation = exif.orientation_of(picture.info.get("exif") or b"")
        if exif.swaps(made.orientation):
            made.width, made.height = made.height, made.width
        return made

    def crop(self, box: Floats | Box, size: int, channels: int) -> Pixels:
        """The pixels of `box` (rounded to whole pixels), perhaps already reduced; a view that lives until the next call."""
        return exif.upright(self._crop(self._stored(box), size, channels), self.orientation)

    def pixels(self, channels: int) -> Pixels:
        """The whole picture in its full size."""
        return self.crop((0.0, 0.0, self.width, self.height), max(self.width, self.height), channels)

    def crop_into(self, out: Pixels, box: Floats | Box, *, bicubic: bool = False) -> float:
        """The pixels of `box` resized into `out` [S, S, C], contiguous; returns the seconds of a separate resize."""
        if self.orientation == exif.UPRIGHT:
            return self._crop_into(out, self._stored(box), bicubic)
        lying = np.empty_like(out)
        seconds = self._crop_into(lying, self._stored(box), bicubic)
        out[...] = exif.upright(lying, self.orientation)
        return seconds

    def _crop_into(self, out: Pixels, stored: tuple[int, int, int, int], bicubic: bool) -> float:
        if not bicubic and self.header is not None and fused.crop_into(out, self.data, self.header, stored):
            return 0.0
        # The bicubic filter needs the full resolution: no reduction while decoding.
        pixels = self._crop(stored, FULL_SIZE if bicubic else out.shape[0], out.shape[2])
        started = time.perf_counter()
        (bicubic_into if bicubic else resize_into)(out, pixels)
        return time.perf_counter() - started

    def _stored(self, box: Floats | Box) -> tuple[int, int, int, int]:
        """The box in whole pixels of the picture as it is stored."""
        whole = whole_box(box, self.width, self.height)
        return exif.stored_box(whole, self.orientation, self.width, self.height)

    def _crop(self, stored: tuple[int, int, int, int], size: int, channels: int) -> Pixels:
        if self.header is not None:
            try:
                return jpeg.decode_crop(self.data, self.header, stored, size, channels == 1)
            except ValueError:
                self._open_by_pillow()
        return self._by_pillow(stored, channels)

    def _open_by_pillow(self) -> None:
        """PNG and the like under any name, CMYK, unusual JPEGs: opened by Pillow, which is slower."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.image = Image.open(io.BytesIO(self.data), formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise TooLargeError(_reason(error)) from None
        except Exception as error:  # Pillow's parsers raise exceptions of any type
            raise BadImageError(_reason(error)) from None
        stored = self.image.size
        if self.header is None:
            self.width, self.height = stored
            # TIFF is upright already: Pillow rotates it by its own tag, once XMP is removed.
            self.image.info.pop("xmp", None)
            if self.image.format == "PNG":
                self.orientation = exif.orientation_of_png(self.data)
            elif self.image.format != "TIFF":
                self.orientation = exif.orientation_of(self.image.info.get("exif") or b"")
        elif stored != (self.header.width, self.header.height):
            raise BadImageError("its headers contradict each other")
        self.header = None

    def _by_pillow(self, stored: tuple[int, int, int, int], channels: int) -> Pixels:
        assert self.image is not None
        size = self.image.size
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.image.load()
                _refuse_fractions(self.image)
                part = self.image if stored == (0, 0, *size) else self.image.crop(stored)
                pixels = _to_array(part, channels)
        except BadImageError:
            raise
        except Exception as error:  # as above
            raise BadImageError(_reason(error)) from None
        if self.image.size != size:
            raise BadImageError("its headers contradict each other")
        return pixels


def whole_box(box: Floats | Box, width: int, height: int) -> tuple[int, int, int, int]:
    """The box rounded to whole pixels, at least one wide and high, inside the image."""
    left, right = _interval(float(box[0]), float(box[2]), width)
    top, bottom = _interval(float(box[1]), float(box[3]), height)
    return left, top, right, bottom


def _interval(low: float, high: float, end: int) -> tuple[int, int]:
    first = min(max(round(low), 0), end - 1)
    return first, min(max(round(high), first + 1), end)


def _to_array(image: Image.Image, channels: int) -> Pixels:
    if image.mode.startswith(("I;16", "I")):
        # 16-bit grey: the high byte; Pillow itself would clip everything above 255.
        high = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        image = Image.fromarray(high)
    mode = "L" if channels == 1 else "RGB"
    converted = image if image.mode == mode else image.convert(mode)
    return np.array(converted).reshape(converted.height, converted.width, -1)


def _refuse_fractions(image: Image.Image) -> None:
    """Refuse floating-point pixels that are no levels from 0 to 255: Pillow would make an image in 0..1 black."""
    if image.mode == "F":
        low, high = cast(tuple[float, float], image.getextrema())
        if not 0 <= low <= high <= 255 or 0 < high <= 1:
            raise BadImageError(f"its pixels are fractions from {low:.4g} to {high:.4g}: store levels from 0 to 255")


def _reason(error: Exception) -> str:
    text = first_line(error)[:120]
    return f"it is no image in {', '.join(FORMATS)} format" if "cannot identify" in text else text
