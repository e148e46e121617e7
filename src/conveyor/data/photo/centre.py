"""The box that validation, prediction and serving take from a photograph. No torch."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from conveyor.options.data import DataOptions

Floats = npt.NDArray[np.float64]
Box: TypeAlias = tuple[float, float, float, float]
"""left, top, right, bottom"""

VALIDATION_RATIO = 256 / 224
"""Shorter side before the central crop, in units of the crop."""


def resized_side(options: DataOptions, size: int) -> int:
    """Shorter side before a central crop of `size`."""
    if options.validation_resize is not None:
        # The option is meant for the full size; with progressive sizes it may be less than the crop.
        return max(size, options.validation_resize)
    return int(size * VALIDATION_RATIO)


def central(heights: Floats, widths: Floats, share: float) -> Floats:
    """Square boxes [B, 4] in the middle, their side `share` of the shorter one."""
    side = np.minimum(heights, widths) * share
    left, top = (widths - side) / 2, (heights - side) / 2
    return np.stack([left, top, left + side, top + side], 1)


def central_box(height: int, width: int, share: float) -> Box:
    """`central` for one image."""
    left, top, right, bottom = central(np.array([float(height)]), np.array([float(width)]), share)[0].tolist()
    return left, top, right, bottom
