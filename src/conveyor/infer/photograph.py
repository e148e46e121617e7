"""An image file as a network takes it: the pixels that validation sees of the same file. No torch here."""

import numpy as np
from numpy.typing import NDArray

from conveyor.data.photo.centre import central_box
from conveyor.data.photo.decode import Encoded
from conveyor.infer.preprocessing import Preprocessing


def pixels_of(image: Encoded, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """uint8 [H, W, C]: upright, the central crop, resized; raises `BadImageError`."""
    out = np.empty(preprocessing.image_shape, np.uint8)
    share = preprocessing.image_size / (preprocessing.resize or preprocessing.image_size)
    box = central_box(image.height, image.width, share)
    image.crop_into(out, box, bicubic=preprocessing.interpolation == "bicubic")
    return out
