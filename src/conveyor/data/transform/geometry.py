"""Flips, shifts and resizes of whole batches of equal-size images, each sample with its own random numbers.

All functions take [B, H, W, C] of any type; random numbers are a pure function of (seed, epoch, sample), so the same on
every layout and after every restart.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from conveyor.numerics import keyed
from conveyor.numerics.copy_stream import sent

Rows: TypeAlias = tuple[Any, ...]
"""Tensors of what was drawn, a row of each for every sample; None for what is not done at all."""


def draw(seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Three uniform numbers per sample, float32 [B, 3]: two for a shift, one for a flip."""
    return keyed.uniform(seed, "geometry", epoch, samples, count=3)


class PerEpoch:
    """`compute(samples, epoch, *size)`, where each sample's row depends on nothing else, for a whole set at once.

    For a small batch the cost is that of the calls, not of the arithmetic on a few dozen numbers; a look-up is one
    call. Sets too large for that (or `count` 0) are computed batch by batch.
    """

    LARGEST = 1 << 17
    """Samples, of up to some hundred bytes each."""

    def __init__(self, compute: Callable[..., Rows], count: int) -> None:
        self._compute = compute
        self._count = count if count <= self.LARGEST else 0
        self._tables: dict[tuple[int, ...], Rows] = {}

    def __call__(self, samples: Tensor, *key: int) -> Rows:
        if not self._count:
            return self._compute(samples, *key)
        table = self._tables.get(key)
        if table is None:
            table = self._compute(torch.arange(self._count), *key)
            # Batches of the previous epoch may still be in the queue.
            self._tables = {key: table, **dict(list(self._tables.items())[:1])}
        try:
            return tuple(None if rows is None else rows.index_select(0, samples) for rows in table)
        except IndexError:
            return self._compute(samples, *key)


def shifts(draws: Tensor, padding: int) -> Tensor:
    """Offsets (row, column) of a crop in the padded image, int64 [B, 2] in 0 .. 2 padding."""
    return (draws[:, :2] * (2 * padding + 1)).to(torch.int64)


def flip_mask(mode: str, draws: Tensor, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Which samples are mirrored, bool [B].

    `random`: probability 1/2 for each (epoch, sample). `alternating`: drawn once per sample and inverted every
    epoch, so two neighbouring epochs show both sides.
    """
    if mode == "random":
        return draws[:, 2] < 0.5
    first = keyed.uniform(seed, "flip", samples, count=1)[..., 0] < 0.5
    return first ^ bool(epoch % 2)


def flip(images: Tensor, mask: Tensor) -> Tensor:
    """Mirror the images for which `mask` is true."""
    if images.device.type == "cpu":
        nothing = torch.zeros(len(images), dtype=torch.int64)
        return shift_and_flip(images, nothing, nothing, mask, *images.shape[1:3])
    return torch.where(mask.view(-1, 1, 1, 1), images.flip(2), images)


def pad(images: Tensor, padding: int, fill: str = "zero") -> Tensor:
    """`padding` pixels on each side, zero or mirrored at the border (which is not repeated)."""
    if fill == "zero":
        return F.pad(images, (0, 0, padding, padding, padding, padding))
    rows, columns = (_mirrored(size, padding, images.device) for size in images.shape[1:3])
    return images.index_select(1, rows).index_select(2, columns)


def shift_and_flip(
    padded: Tensor, rows: Tensor, columns: Tensor, mask: Tensor | None, height: int, width: int
) -> Tensor:
    """`padded[b, rows[b]:rows[b]+height, columns[b]:columns[b]+width]` for all b at once, mirrored where `mask` is true."""
    if padded.device.type != "cpu":
        return windows_by_torch(padded, rows, columns, mask, height, width)
    # Through numpy, which copies whole rows where torch's indexing goes value by value: eight times as fast.
    pixels = padded.contiguous().numpy()
    batch, full_height, full_width, channels = pixels.shape
    step_image, step_row, step, _ = pixels.strides
    plain = np.lib.stride_tricks.as_strided(
        pixels,
        (batch, full_height - height + 1, full_width - width + 1, height, width * channels),
        (step_image, step_row, step, step_row, pixels.itemsize),
        writeable=False,
    )
    chosen = plain[np.arange(batch), rows.numpy(), columns.numpy()].reshape(batch, height, width, channels)
    if mask is not None and mask.any():
        # torch reverses rows of pixels faster than numpy, numpy copies images faster than torch.
        chosen[mask.numpy()] = torch.from_numpy(chosen[mask.numpy()]).flip(2).numpy()
    return torch.from_numpy(chosen)


def windows_by_torch(
    padded: Tensor, rows: Tensor, columns: Tensor, mask: Tensor | None, height: int, width: int
) -> Tensor:
    """`shift_and_flip` on any device, without synchronisation."""
    windows = padded.unfold(1, height, 1).unfold(2, width, 1)
    chosen = windows[torch.arange(len(padded), device=padded.device), rows, columns].permute(0, 2, 3, 1)
    return chosen if mask is None else torch.where(mask.view(-1, 1, 1, 1), chosen.flip(2), chosen)


def resize(images: Tensor, size: int) -> Tensor:
    """Bilinear with antialiasing to `size` x `size`, float32; the same array when it has that size already."""
    if images.shape[1] == size and images.shape[2] == size:
        return images
    nchw = images.permute(0, 3, 1, 2).to(torch.float32)
    return F.interpolate(nchw, (size, size), mode="bilinear", antialias=True).permute(0, 2, 3, 1)


def crop_boxes(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Each image's box (left, top, right, bottom in pixels, [B, 4]) resized bilinearly to `size` x `size`, float32."""
    _, height, width, _ = images.shape
    left, top, right, bottom = sent(boxes.to(torch.float32), images.device).unbind(1)
    zero = torch.zeros_like(left)
    scale_x, scale_y = (right - left) / width, (bottom - top) / height
    shift_x, shift_y = (left + right) / width - 1, (top + bottom) / height - 1
    theta = torch.stack([scale_x, zero, shift_x, zero, scale_y, shift_y], 1).view(-1, 2, 3)
    grid = F.affine_grid(theta, [len(images), 1, size, size], align_corners=False)
    nchw = images.permute(0, 3, 1, 2).to(torch.float32)
    sampled = F.grid_sample(nchw, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return sampled.permute(0, 2, 3, 1)


def _mirrored(size: int, padding: int, device: torch.device) -> Tensor:
    positions = torch.arange(-padding, size + padding, device=device).abs()
    return torch.where(positions >= size, 2 * (size - 1) - positions, positions)
