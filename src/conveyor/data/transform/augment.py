"""Shift, mirror and normalise a batch on the CPU in one pass, by a C function compiled on first use.

The results are the same to the bit as those of `geometry` and `Normalization`, which are used everywhere else.
"""

import torch
from torch import Tensor

from conveyor.data.transform.normalize import Normalization, row_of
from conveyor.numerics.native.build import library, run


def applies(images: Tensor, normalization: Normalization) -> bool:
    """Whether `augment` can do it: 8-bit images in this machine's memory, and the same normalisation for all of them."""
    return (
        images.dtype == torch.uint8
        and images.device.type == "cpu"
        and images.is_contiguous()
        and not normalization.per_image
        and images.numel() > 0
        and images.shape[3] == len(normalization.scale)
        and library("augment") is not None
    )


def augment(
    images: Tensor, normalization: Normalization, offsets: Tensor | None, padding: int, fill: str, mirror: Tensor | None
) -> Tensor:
    """float32 [B, H, W, C] from uint8: the window at `offsets` (rows, columns; int64 [B, 2]) of the padded images.

    `mirror` bool [B] says which are turned left to right; None for `offsets` or `mirror` leaves that step out. Mirrored
    filling needs padding smaller than the images.
    """
    batch, height, width, channels = images.shape
    if offsets is not None:
        offsets = offsets.contiguous()
        if fill != "zero" and padding >= min(height, width):
            raise ValueError(f"images of {height} x {width} cannot be mirrored {padding} pixels beyond their border")
    mirror = None if mirror is None else mirror.contiguous()
    scale, shift = (row_of(values, width, images.device) for values in (normalization.scale, normalization.shift))
    scratch = torch.empty(batch * 2 * width * channels, dtype=torch.uint8)
    out = torch.empty(batch, height, width, channels, dtype=torch.float32)
    run(
        "augment", "augment", images.data_ptr(), batch, height, width, channels, padding, fill != "zero",
        None if offsets is None else offsets.data_ptr(), None if mirror is None else mirror.data_ptr(),
        scale.data_ptr(), shift.data_ptr(), scratch.data_ptr(), out.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return out
