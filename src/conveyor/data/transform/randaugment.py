"""RandAugment and TrivialAugment as batched tensor operations.

RandAugment: a few operations drawn for each image, one common strength. TrivialAugment (Mueller and Hutter 2021, the wide
space): one operation, its strength one of 31, drawn for each image. What an image gets is a pure function of (seed, epoch,
sample). The images of a batch that drew the same operation go through it together; rotations, shears and translations are
one affine sampling for all. RandAugment samples bilinearly and rounds nothing to 8 bits between its operations;
TrivialAugment takes the nearest pixel and gives 8-bit values, as published.
"""

import dataclasses
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from conveyor.data.transform.normalize import LUMA
from conveyor.numerics import keyed

IN_PLANES = ("autocontrast", "equalize", "color", "contrast")
"""Operations that are faster on one plane for each colour: they take sums over planes or mix them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Space:
    """How far operations reach at full strength."""

    shear: float = 0.3
    shift: float = 0.45
    """Of a translation: a share of the image, or pixels where it is above 1."""
    angle: float = 30.0
    blend: float = 0.9
    """color, contrast, brightness, sharpness: factors 1 - blend to 1 + blend."""
    solarize: float = 256.0
    """The threshold without strength; it falls to 0."""
    bits: int = 4
    """Bits that posterize takes away."""
    fill: float = 128.0
    """Grey level of what a moved image uncovers."""
    published: bool = True
    """Shears leave the upper left corner where it is, not the centre; the nearest pixel is taken."""


RANDAUGMENT = Space(published=False)
TRIVIAL = Space(0.99, 32.0, 135.0, 0.99, 255.0, 6, fill=0.0)
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
    pixels = images.to(torch.float32)
    strength = magnitude / HIGHEST
    for number in range(operations):
        draws = keyed.uniform(seed, "randaugment", number, epoch, samples, count=2)
        chosen = (draws[:, 0] * len(OPERATIONS)).to(torch.int64)
        signed = torch.where(draws[:, 1] < 0.5, -strength, strength)
        pixels = apply(pixels, chosen, signed, RANDAUGMENT)
    return pixels


def trivialaugment(images: Tensor, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Augmented copies of images [B, H, W, C] in 0..255 by TrivialAugment, 8-bit values."""
    draws = keyed.uniform(seed, "trivialaugment", epoch, samples, count=3)
    chosen = (draws[:, 0] * len(OPERATIONS)).to(torch.int64)
    strength = (draws[:, 1] * (HIGHEST + 1)).floor() / HIGHEST
    signed = torch.where(draws[:, 2] < 0.5, -strength, strength)
    pixels = images.clamp(0, 255).to(torch.uint8) if images.is_floating_point() else images
    return apply(pixels, chosen, signed, TRIVIAL)


def apply(images: Tensor, chosen: Tensor, signed: Tensor, space: Space) -> Tensor:
    """To each image [H, W, C], float32 or 8-bit, its operation, an index of `OPERATIONS`, with a strength in -1..1.

    `chosen` and `signed` [B] are on the host, wherever the images are: the host need not wait to know what is to be done.
    """
    device = images.device
    first_affine = OPERATIONS.index(AFFINE[0])
    numbers = chosen.clamp(max=first_affine)
    sorted_numbers, order = numbers.sort(stable=True)
    parts = []
    for number, where in zip(*_runs(sorted_numbers, order), strict=True):
        # Whole images are taken and put back while their memory is in one piece.
        taken = images.index_select(0, where.to(device, non_blocking=True))
        if number == 0:
            parts.append(taken)
            continue
        pixels = taken.permute(0, 3, 1, 2)
        pixels = (pixels.contiguous() if OPERATIONS[number] in IN_PLANES else pixels).float()
        if number == first_affine:
            changed = affine(pixels, chosen[where] - first_affine, signed[where], space)
        else:
            changed = COLOUR[OPERATIONS[number]](
                pixels, signed[where].view(-1, 1, 1, 1).to(device, non_blocking=True), space
            )
        parts.append(changed.to(images.dtype).permute(0, 2, 3, 1))
    return torch.cat(parts).index_select(0, order.argsort().to(device, non_blocking=True))


def _runs(ordered: Tensor, order: Tensor) -> tuple[list[int], list[Tensor]]:
    """The different numbers in a sorted list, and the part of `order` that belongs to each."""
    numbers, counts = ordered.unique_consecutive(return_counts=True)
    return numbers.tolist(), list(order.split(counts.tolist()))


def affine(pixels: Tensor, which: Tensor, signed: Tensor, space: Space = RANDAUGMENT) -> Tensor:
    """Shear, translate, or rotate about the centre; `which` is an index of `AFFINE`."""
    _, _, height, width = pixels.shape
    zero, one = torch.zeros_like(signed), torch.ones_like(signed)
    shear, angle = space.shear * signed, math.radians(space.angle) * signed
    right, down = (2 * space.shift / (size if space.shift > 1 else 1) * signed for size in (width, height))
    if space.published:
        # About the corner is about the centre and a translation: the sampling grid runs from -1 to 1.
        right, down = (torch.where(which < 2, shear, shift) for shift in (right, down))
    moves_x, moves_y = ((which == a) | ((which == b) & space.published) for a, b in ((2, 0), (3, 1)))
    cos, sin = torch.where(which == 4, angle.cos(), one), torch.where(which == 4, angle.sin(), zero)
    theta = torch.stack(
        [
            cos,
            torch.where(which == 0, shear, -sin * height / width),
            torch.where(moves_x, right, zero),
            torch.where(which == 1, shear, sin * width / height),
            cos,
            torch.where(moves_y, down, zero),
        ],
        1,
    ).view(-1, 2, 3)
    theta = theta.to(pixels.device, non_blocking=True)
    if space.published:
        return F.grid_sample(pixels, _grid(theta, height, width), "nearest", "zeros", align_corners=False)
    grid = F.affine_grid(theta, list(pixels.shape), align_corners=False)
    # Zero padding of the difference to grey is grey padding of the image.
    moved = F.grid_sample(pixels - space.fill, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return moved + space.fill


def _grid(theta: Tensor, height: int, width: int) -> Tensor:
    """`affine_grid`, [B, H, W, 2], as outer sums: eight times as fast."""
    rows, columns = ((2 * torch.arange(size, device=theta.device) + 1) / size - 1 for size in (height, width))
    grid = torch.empty(len(theta), height, width, 2, device=theta.device)
    for axis in (0, 1):
        along, across, shift = (theta[:, axis, place, None] for place in range(3))
        torch.add((along * columns)[:, None], (across * rows + shift)[:, :, None], out=grid[..., axis])
    return grid


def autocontrast(pixels: Tensor, _: Tensor, __: Space = RANDAUGMENT) -> Tensor:
    """Each channel stretched to 0..255; a uniform channel stays."""
    low, high = torch.aminmax(pixels.flatten(2), dim=2)  # planes, over which this is fast
    scale = torch.where(high > low, 255 / (high - low).clamp_min(1e-6), 1.0)
    low = torch.where(high > low, low, 0.0)
    return (pixels - low[..., None, None]) * scale[..., None, None]


def equalize(pixels: Tensor, _: Tensor, __: Space = RANDAUGMENT) -> Tensor:
    """Each channel's histogram made flat: a value becomes the number of darker pixels in units of (all - brightest) / 255."""
    batch, channels, height, width = pixels.shape
    values = pixels.round().clamp(0, 255).to(torch.int64).reshape(batch * channels, -1)
    counts = torch.zeros(batch * channels, 256, device=pixels.device)
    counts.scatter_add_(1, values, torch.ones_like(values, dtype=torch.float32))
    brightest = counts.gather(1, values.amax(1, keepdim=True))
    step = ((height * width - brightest) / 255).floor()
    darker = counts.cumsum(1) - counts
    table = ((darker + (step / 2).floor()) / step.clamp_min(1)).floor().clamp(0, 255)
    same = torch.arange(256.0, device=pixels.device)
    return torch.where(step > 0, table, same).gather(1, values).view(pixels.shape)


def solarize(pixels: Tensor, signed: Tensor, space: Space = RANDAUGMENT) -> Tensor:
    """Values from a threshold on, which falls to 0 with the strength, are inverted."""
    # Weights of 0 and 1 choose exactly, and faster than a condition.
    return torch.lerp(pixels, 255 - pixels, (pixels >= space.solarize * (1 - signed.abs())).float())


def posterize(pixels: Tensor, signed: Tensor, space: Space = RANDAUGMENT) -> Tensor:
    """Keep the highest 8 bits or fewer."""
    step = 2.0 ** (space.bits * signed.abs()).round()
    return (pixels / step).floor() * step


def color(pixels: Tensor, signed: Tensor, space: Space = RANDAUGMENT) -> Tensor:
    return blend(grey(pixels), pixels, 1 + space.blend * signed)


def contrast(pixels: Tensor, signed: Tensor, space: Space = RANDAUGMENT) -> Tensor:
    return blend(grey(pixels).mean((1, 2, 3), keepdim=True), pixels, 1 + space.blend * signed)


def brightness(pixels: Tensor, signed: Tensor, space: Space = RANDAUGMENT) -> Tensor:
    return (pixels * (1 + space.blend * signed)).clamp(0, 255)


def sharpness(pixels: Tensor, signed: Tensor, space: Space = RANDAUGMENT) -> Tensor:
    """Blend with a smoothed image (3x3, centre 5 of 13); the border stays."""
    channels = pixels.shape[1]
    kernel = torch.ones(3, 3, device=pixels.device)
    kernel[1, 1] = 5
    kernel = (kernel / kernel.sum()).expand(channels, 1, 3, 3)
    smooth = pixels.clone()
    if min(pixels.shape[2:]) > 2:
        smooth[:, :, 1:-1, 1:-1] = F.conv2d(pixels, kernel, groups=channels)
    return blend(smooth, pixels, 1 + space.blend * signed)


COLOUR: dict[str, Callable[[Tensor, Tensor, Space], Tensor]] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "solarize": solarize,
    "posterize": posterize,
    "color": color,
    "contrast": contrast,
    "brightness": brightness,
    "sharpness": sharpness,
}


def blend(plain: Tensor, pixels: Tensor, factor: Tensor) -> Tensor:
    """plain + factor (pixels - plain), clipped to 0..255."""
    return (plain + factor * (pixels - plain)).clamp(0, 255)


def grey(pixels: Tensor) -> Tensor:
    if pixels.shape[1] != len(LUMA):
        return pixels.mean(1, keepdim=True)
    red, green, blue = pixels.split(1, 1)
    return red * LUMA[0] + green * LUMA[1] + blue * LUMA[2]
