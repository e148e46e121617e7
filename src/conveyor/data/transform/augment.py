"""Shift, mirror and normalise a batch on the CPU in one pass, by a C function.

The results are the same to the bit as those of `geometry` and `Normalization`, which are used everywhere else.
"""

import torch
from torch import Tensor

from conveyor.data.transform.normalize import Normalization, row_of
from conveyor.numerics.native.build import library, run


def applies(images: Tensor, normalization: Normalization | None) -> bool:
    """Whether `augment` can do it: 8-bit images in this machine's memory, and the same normalisation, or none, for all."""
    return (
        images.dtype == torch.uint8
        and images.device.type == "cpu"
        and images.is_contiguous()
        and images.numel() > 0
        and (normalization is None or (not normalization.per_image and images.shape[3] == len(normalization.scale)))
        and library("augment") is not None
    )


def augment(
    images: Tensor,
    normalization: Normalization | None,
    offsets: Tensor | None,
    padding: int,
    fill: str,
    mirror: Tensor | None,
) -> Tensor:
    """float32 [B, H, W, C] from uint8, uint8 without `normalization`: the window at `offsets` of the padded images.

    `offsets` are rows and columns, int64 [B, 2]; `mirror` bool [B] says which images are turned left to right; None for
    either leaves that step out. Mirrored filling needs padding smaller than the images.
    """
    batch, height, width, channels = images.shape
    if offsets is not None:
        offsets = offsets.contiguous()
        if fill != "zero" and padding >= min(height, width):
            raise ValueError(f"images of {height} x {width} cannot be mirrored {padding} pixels beyond their border")
    mirror = None if mirror is None else mirror.contiguous()
    scale = shift = None
    if normalization is not None:
        scale, shift = (row_of(values, width, images.device) for values in (normalization.scale, normalization.shift))
    scratch = torch.empty(batch * 2 * width * channels, dtype=torch.uint8)
    out = torch.empty(images.shape, dtype=torch.uint8 if scale is None else torch.float32)
    addresses = [None if one is None else one.data_ptr() for one in (offsets, mirror, scale, shift)]
    run(
        "augment", "augment", images.data_ptr(), batch, height, width, channels, padding, fill != "zero", *addresses,
        scratch.data_ptr(), out.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return out
