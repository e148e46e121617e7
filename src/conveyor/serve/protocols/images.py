"""Photographs in requests to pixels: validation's decoder, with limits for untrusted input."""

import numpy as np
from numpy.typing import NDArray

from conveyor.data.photo.decode import BadImageError, Encoded, TooLargeError
from conveyor.infer.predict import pixels_of
from conveyor.infer.preprocessing import Preprocessing
from conveyor.serve.errors import Refused, TooLarge

LONGEST_SIDE_RATIO = 200
STARTS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
"""First bytes of image files."""


def decode(content: bytes, preprocessing: Preprocessing, max_pixels: int) -> NDArray[np.uint8]:
    """uint8 [H, W, C]: the pixels that validation sees of the same file."""
    try:
        image = Encoded(content, max_pixels)
        sides = sorted((image.width, image.height))
        if sides[0] < 1 or sides[1] > LONGEST_SIDE_RATIO * sides[0]:
            raise Refused(
                f"an image of {image.width} x {image.height} pixels cannot be classified: at most one side may be "
                f"{LONGEST_SIDE_RATIO} times the other"
            )
        return pixels_of(image, preprocessing)
    except TooLargeError as error:
        raise TooLarge(f"the image has too many pixels: {error}") from error
    except BadImageError as error:
        raise Refused(f"the image cannot be decoded: {error}") from error


def not_json(body: bytes, error: Exception) -> Refused:
    """What to say of a request that should be JSON and is not: a photograph is told the right address."""
    if body.startswith(STARTS):
        return Refused("this is a photograph, not JSON: send it to /classify as it is, or here in base64")
    return Refused(f"the request is not JSON: {str(error)[:100]}")
