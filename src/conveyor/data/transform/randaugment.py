"""RandAugment as batched tensor operations: for each image a few operations drawn at random, one common strength.

Which operations an image gets, and their signs, are a pure function of (seed, epoch, sample). The images of a batch that
drew the same operation go through it together; rotations, shears and translations are one affine sampling for all.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from conveyor.data.transform.normalize import LUMA
from conveyor.numerics import keyed

FILL = 128.0
"""Grey level of what a moved image uncovers."""
HIGHEST = 30.0
"""Magnitude that stands for full strength."""
AFFINE = ("shear-x", "shear-y", "translate-x", "translate-y", "rotate")
OPERATIONS = (
    "identity",
    "autocontrast",
    "equalize",
    "solarize",
    "posterize",
    "color",
    "contrast",
    "brightness",
    "sharpness",
    *AFFINE,
)


def randaugment(images: Tensor, seed: int, epoch: int, samples: Tensor, *, operations: int, magnitude: float) -> Tensor:
    """Augmented copies of 8-bit images [B, H, W, C] as float32 in 0..255."""
    pixels = images.permute(0, 3, 1, 2).to(torch.float32)
    strength = magnitude / HIGHEST
    for number in range(operations):
        draws = keyed.uniform(seed, "randaugment", number, epoch, samples, count=2)
        chosen = (draws[:, 0] * len(OPERATIONS)).to(torch.int64)
        signed = torch.where(draws[:, 1] < 0.5, -strength, strength)
        pixels = _apply(pixels, chosen, signed)
    return pixels.permute(0, 2, 3, 1)


def _apply(pixels: Tensor, chosen: Tensor, signed: Tensor) -> Tensor:
    result = pixels.clone()
    first_affine = OPERATIONS.index(AFFINE[0])
    moved = (chosen >= first_affine).nonzero()[:, 0]
    if len(moved):
        result[moved] = affine(pixels[moved], chosen[moved] - first_affine, signed[moved])
    for number, name in enumerate(OPERATIONS[1:first_affine], 1):
        where = (chosen == number).nonzero()[:, 0]
        if len(where):
            result[where] = COLOUR[name](pixels[where], signed[where].view(-1, 1, 1, 1))
    return result


def affine(pixels: Tensor, which: Tensor, signed: Tensor) -> Tensor:
    """Shear by up to 0.3, translate by up to 0.45 of the size, rotate by up to 30 degrees about the centre."""
    _, _, height, width = pixels.shape
    zero, one = torch.zeros_like(signed), torch.ones_like(signed)
    shear, shift, angle = 0.3 * signed, 0.9 * signed, math.radians(30) * signed
    cos, sin = torch.where(which == 4, angle.cos(), one), torch.where(which == 4, angle.sin(), zero)
    theta = torch.stack(
        [
            cos,
            torch.where(which == 0, shear, -sin * height / width),
            torch.where(which == 2, shift, zero),
            torch.where(which == 1, shear, sin * width / height),
            cos,
            torch.where(which == 3, shift, zero),
        ],
        1,
    ).view(-1, 2, 3)
    grid = F.affine_grid(theta, list(pixels.shape), align_corners=False)
    # Zero padding of the difference to grey is grey padding of the image.
    return F.grid_sample(pixels - FILL, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + FILL


def autocontrast(pixels: Tensor, _: Tensor) -> Tensor:
    """Each channel stretched to 0..255; a uniform channel stays."""
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    scale = 255 / (high - low).clamp_min(1e-6)
    return torch.where(high > low, (pixels - low) * scale, pixels)


def equalize(pixels: Tensor, _: Tensor) -> Tensor:
    """Each channel's histogram made flat: a value becomes the number of darker pixels in units of (all - brightest) / 255."""
    batch, channels, height, width = pixels.shape
    values = pixels.round().clamp(0, 255).to(torch.int64).reshape(batch * channels, -1)
    counts = torch.zeros(batch * channels, 256, device=pixels.device)
    counts.scatter_add_(1, values, torch.ones_like(values, dtype=torch.float32))
    brightest = counts.gather(1, values.amax(1, keepdim=True))
    step = ((height * width - brightest) / 255).floor()
    darker = counts.cumsum(1) - counts
    table = ((darker + (step / 2).floor()) / step.clamp_min(1)).floor().clamp(0, 255)
    return torch.where(step > 0, table.gather(1, values), values.to(torch.float32)).view(pixels.shape)


def solarize(pixels: Tensor, signed: Tensor) -> Tensor:
    """Values above a threshold that falls from 256 to 0 with the strength are inverted."""
    return torch.where(pixels >= 256 * (1 - signed.abs()), 255 - pixels, pixels)


def posterize(pixels: Tensor, signed: Tensor) -> Tensor:
    """Keep the highest 8 .. 4 bits."""
    step = 2.0 ** (4 * signed.abs()).round()
    return (pixels / step).floor() * step


def color(pixels: Tensor, signed: Tensor) -> Tensor:
    return _blend(_grey(pixels), pixels, signed)


def contrast(pixels: Tensor, signed: Tensor) -> Tensor:
    return _blend(_grey(pixels).mean((1, 2, 3), keepdim=True), pixels, signed)


def brightness(pixels: Tensor, signed: Tensor) -> Tensor:
    return _blend(torch.zeros_like(pixels), pixels, signed)


def sharpness(pixels: Tensor, signed: Tensor) -> Tensor:
    """Blend with a smoothed image (3x3, centre 5 of 13); the border stays."""
    channels = pixels.shape[1]
    kernel = torch.ones(3, 3, device=pixels.device)
    kernel[1, 1] = 5
    kernel = (kernel / kernel.sum()).expand(channels, 1, 3, 3)
    smooth = pixels.clone()
    if min(pixels.shape[2:]) > 2:
        smooth[:, :, 1:-1, 1:-1] = F.conv2d(pixels, kernel, groups=channels)
    return _blend(smooth, pixels, signed)


COLOUR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "solarize": solarize,
    "posterize": posterize,
    "color": color,
    "contrast": contrast,
    "brightness": brightness,
    "sharpness": sharpness,
}


def _blend(plain: Tensor, pixels: Tensor, signed: Tensor) -> Tensor:
    """plain + (1 + 0.9 s)(pixels - plain), s in -1..1, clipped to 0..255."""
    return (plain + (1 + 0.9 * signed) * (pixels - plain)).clamp(0, 255)


def _grey(pixels: Tensor) -> Tensor:
    if pixels.shape[1] != len(LUMA):
        return pixels.mean(1, keepdim=True)
    return (pixels * torch.tensor(LUMA, device=pixels.device).view(1, 3, 1, 1)).sum(1, keepdim=True)
