"""Bilinear resize with antialiasing in integers: compiled where there is a compiler, else in numpy, to the same bit.

Each output is the weighted mean of the inputs within `ratio` (at least 1) of its centre, weights falling linearly, in 15
bits. Rows first, each product rounded to 7 bits after the point, then columns. Within one level of Pillow's as long as
an output has fewer than some hundred inputs on each axis. No torch.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from PIL import Image

from conveyor.data.photo import fused

Pixels = npt.NDArray[np.uint8]


def resize_into(out: Pixels, pixels: Pixels) -> None:
    """From [h, w, C] into `out` uint8 [S, S, C], contiguous."""
    if pixels.shape == out.shape:
        out[...] = pixels
        return
    if pixels.strides[1:] != (pixels.shape[2], 1) or pixels.strides[0] < 0:
        pixels = np.ascontiguousarray(pixels)
    if not fused.resize_into(out, pixels):
        by_numpy(out, pixels)


def bicubic_into(out: Pixels, pixels: Pixels) -> None:
    """The same with Pillow's cubic filter, for networks that were trained so; [h, w, C] should be in full resolution."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels))
    resized = image.resize((out.shape[1], out.shape[0]), Image.Resampling.BICUBIC)
    out[...] = np.asarray(resized).reshape(out.shape)


def by_numpy(out: Pixels, pixels: Pixels) -> None:
    """What `conveyor_resize` in native/jpeg_crop.c does."""
    size = len(out)
    lines = np.zeros((size, *pixels.shape[1:]), np.int32)
    for inputs, weights in _plan(len(pixels), size):
        product = pixels[inputs].astype(np.int32)
        product *= weights
        product += 128
        product >>= 8
        lines += product
    np.minimum(lines, 32767, out=lines)
    columns = np.ascontiguousarray(lines.transpose(1, 0, 2))
    sums = np.full((size, size, pixels.shape[2]), 1 << 21, np.int32)
    for inputs, weights in _plan(len(columns), size):
        product = columns[inputs]
        product *= weights
        sums += product
    sums >>= 22
    out[...] = sums.clip(0, 255).transpose(1, 0, 2)


def _plan(inputs: int, outputs: int) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]]:
    """For each tap: the input of each output, [outputs], and its weight, [outputs, 1, 1]; an output's add up to 2^15."""
    ratio = inputs / outputs
    reach = max(ratio, 1.0)
    centre = (np.arange(outputs) + 0.5) * ratio
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    end = np.minimum((centre + reach + 0.5).astype(np.int64), inputs)
    which = first + np.arange(int((end - first).max()))[:, None]
    shares = np.where(which < end, 1 - np.abs((which + 0.5 - centre) / reach), 0.0)
    total = np.zeros(outputs)
    for share in shares:  # in this order: the sum is one of floating-point numbers
        total += share
    weights = np.where(which < end, np.minimum((shares / total * 32768 + 0.5).astype(np.int64), 32767), 0)
    largest, column = weights.argmax(0), np.arange(outputs)
    corrected = weights[largest, column] + 32768 - weights.sum(0)
    weights[largest, column] = np.minimum(corrected, 32767)
    return zip(np.minimum(which, inputs - 1), weights.astype(np.int32)[:, :, None, None], strict=True)
