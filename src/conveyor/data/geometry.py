"""Flips, shifts and resizes of whole batches of equal-size images, each sample with its own random numbers.

All functions take [B, H, W, C] of any type and keys as tensors; random numbers are a pure function of
(seed, epoch, sample), so the same on every layout and after every restart.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from conveyor.numerics import keyed


def flip_mask(mode: str, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Which samples are mirrored, bool [B].

    `random`: a fair coin for each (epoch, sample). `alternating`: the coin is tossed once per sample and turned over in
    every epoch, so two neighbouring epochs show both sides.
    """
    if mode == "random":
        return keyed.uniform(seed, "flip", epoch, samples, count=1)[..., 0] < 0.5
    first = keyed.uniform(seed, "flip", samples, count=1)[..., 0] < 0.5
    return first ^ bool(epoch % 2)


def flip(images: Tensor, mask: Tensor) -> Tensor:
    """Mirror the images for which `mask` is true."""
    return torch.where(mask.view(-1, 1, 1, 1), images.flip(2), images)


def shifts(padding: int, seed: int, epoch: int, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets (rows, columns) of a crop in the padded image, int64 [B] in 0 .. 2 padding."""
    drawn = keyed.integers(seed, "crop", epoch, samples, high=2 * padding + 1, count=2)
    return drawn[..., 0], drawn[..., 1]


def pad(images: Tensor, padding: int, fill: str = "zero") -> Tensor:
    """`padding` pixels on each side, zero or mirrored at the border (which is not repeated)."""
    if fill == "zero":
        return F.pad(images, (0, 0, padding, padding, padding, padding))
    rows, columns = (_mirrored(size, padding, images.device) for size in images.shape[1:3])
    return images.index_select(1, rows).index_select(2, columns)


def crop_windows(padded: Tensor, rows: Tensor, columns: Tensor, height: int, width: int) -> Tensor:
    """`padded[b, rows[b]:rows[b]+height, columns[b]:columns[b]+width]` for all b at once."""
    windows = padded.unfold(1, height, 1).unfold(2, width, 1)
    chosen = windows[torch.arange(len(padded), device=padded.device), rows, columns]
    return chosen.permute(0, 2, 3, 1)


def resize(images: Tensor, size: int) -> Tensor:
    """Bilinear with antialiasing to `size` x `size`, float32; the same array when it has that size already."""
    if images.shape[1] == size and images.shape[2] == size:
        return images
    nchw = images.permute(0, 3, 1, 2).to(torch.float32)
    return F.interpolate(nchw, (size, size), mode="bilinear", antialias=True).permute(0, 2, 3, 1)


def _mirrored(size: int, padding: int, device: torch.device) -> Tensor:
    positions = torch.arange(-padding, size + padding, device=device).abs()
    return torch.where(positions >= size, 2 * (size - 1) - positions, positions)
