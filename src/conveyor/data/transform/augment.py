"""Shift, mirror, change, normalise and erase a batch on the CPU in one pass, by a C function.

The results are the same to the bit as those of `geometry`, `operations`, `Normalization` and `erasing`, one after the other,
which are used everywhere else.
"""

import torch
from torch import Tensor

from conveyor.data.transform.normalize import Normalization, row_of
from conveyor.numerics.native.build import library, run

LARGEST = 4096
"""Height and width up to which the positions of a plan fit into 32 bits."""


def applies(images: Tensor, normalization: Normalization | None, *, planned: bool = False) -> bool:
    """Whether `augment` can do it: 8-bit images in this machine's memory, and the same normalisation, or none, for all.

    `planned`: with a plan, which takes one channel or three.
    """
    return (
        images.dtype == torch.uint8
        and images.device.type == "cpu"
        and images.is_contiguous()
        and images.numel() > 0
        and not (planned and (images.shape[3] not in (1, 3) or max(images.shape[1:3]) > LARGEST))
        and (normalization is None or (not normalization.per_image and images.shape[3] == len(normalization.scale)))
        and library("augment") is not None
    )


def augment(
    images: Tensor,
    normalization: Normalization | None,
    offsets: Tensor | None = None,
    padding: int = 0,
    fill: str = "zero",
    mirror: Tensor | None = None,
    plan: Tensor | None = None,
    boxes: Tensor | None = None,
) -> Tensor:
    """float32 [B, H, W, C] from uint8, uint8 without `normalization`: the window at `offsets` of the padded images.

    `offsets` are rows and columns, int64 [B, 2]; `mirror` bool [B] says which images are turned left to right; `plan` is that of
    `operations`, `boxes` [B, 4] those of `erasing`; None leaves that step out. Mirrored filling needs padding smaller than
    the images.
    """
    batch, height, width, channels = images.shape
    if offsets is not None and fill != "zero" and padding >= min(height, width):
        raise ValueError(f"images of {height} x {width} cannot be mirrored {padding} pixels beyond their border")
    scale = shift = None
    if normalization is not None:
        scale, shift = (row_of(values, width, images.device) for values in (normalization.scale, normalization.shift))
    room, threads = 2 * width * channels + 64, torch.get_num_threads()
    if plan is not None:
        room += 2 * height * width * channels + 4 * ((height + 4) * (width + 4) + 2 * height * width + 4 * width)
    room = room // 64 * 64 + 64
    scratch = torch.empty(threads * room, dtype=torch.uint8)
    out = torch.empty(images.shape, dtype=torch.uint8 if scale is None else torch.float32)
    given = [None if one is None else one.contiguous() for one in (offsets, mirror, plan, boxes)]
    moves, mirrored, steps, erased = (None if one is None else one.data_ptr() for one in given)
    rows = [None if one is None else one.data_ptr() for one in (scale, shift)]
    run(
        "augment", "augment", images.data_ptr(), batch, height, width, channels, padding, fill != "zero", moves, mirrored, steps,
        0 if plan is None else plan.shape[1], erased, *rows, scratch.data_ptr(), room, out.data_ptr(), threads,
    )  # fmt: skip
    return out
