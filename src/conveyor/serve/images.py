"""Encoded photographs to pixels, with limits: what a stranger sends is checked before memory is spent on it."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from conveyor.infer.preprocessing import Preprocessing
from conveyor.serve.refused import Refused, TooLarge

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
"""Formats that browsers make; the many exotic decoders of the library stay closed."""
LONGEST_SIDE_RATIO = 200
ORIENTATION = 0x0112
_TURNS: dict[object, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(content: bytes, preprocessing: Preprocessing, max_pixels: int) -> NDArray[np.uint8]:
    """uint8 [H, W, C]: upright, shorter side to `resize` (or the image size), central crop, as in validation."""
    image = _open(content, max_pixels)
    size = preprocessing.image_size
    shorter = preprocessing.resize or size
    try:
        # JPEG can be decoded at 1/2, 1/4 or 1/8 of its size: a telephone's 12 megapixels cost a tenth of the time.
        image.draft(None, (shorter, shorter))
        image.load()
        image = _upright(image)
        if image.mode.startswith("I"):  # 16 bits: Pillow would cut off what is above 255 instead of scaling
            image = image.convert("I").point(lambda value: value * (1 / 257))
        image = image.convert("L" if preprocessing.channels == 1 else "RGB")
    except Exception as error:  # decoders raise whatever their parsers stumble over
        raise Refused(f"the image is damaged or cut off: {_short(error)}") from error
    width, height = image.size
    if min(width, height) != shorter:
        factor = shorter / min(width, height)
        image = image.resize(
            (max(shorter, round(width * factor)), max(shorter, round(height * factor))), Image.Resampling.BILINEAR
        )
    left, top = (image.width - size) // 2, (image.height - size) // 2
    pixels = np.asarray(image.crop((left, top, left + size, top + size)), np.uint8)
    return pixels.reshape(preprocessing.image_shape)


def _open(content: bytes, max_pixels: int) -> Image.Image:
    """The image with its header read and its size approved; no pixel is decoded yet."""
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooLarge(f"the image has too many pixels: at most {max_pixels} are accepted") from error
    except Exception as error:  # decoders raise whatever their parsers stumble over
        raise Refused(f"this is no image in {', '.join(FORMATS)} format: {_short(error)}") from error
    width, height = image.size
    if width * height > max_pixels:
        raise TooLarge(f"the image has {width} x {height} pixels: at most {max_pixels} are accepted")
    if min(width, height) < 1 or max(width, height) > LONGEST_SIDE_RATIO * min(width, height):
        raise Refused(f"an image of {width} x {height} pixels cannot be classified")
    return image


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its notes say; the library would also write them anew, and fail where another of them is damaged."""
    try:
        turn = _TURNS.get(image.getexif().get(ORIENTATION))
    except Exception:  # damaged: as without any, the pixels are there
        return image
    return image if turn is None else image.transpose(turn)


def _short(error: BaseException) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return "unknown content" if "BytesIO" in text else text[:120]
