"""RandAugment and TrivialAugment as batched tensor operations.

RandAugment: a few operations drawn for each image, one common strength. TrivialAugment (Mueller and Hutter 2021, the wide
space): one operation, its strength one of 31, drawn for each image. What an image gets is a pure function of (seed, epoch,
sample). The images of a batch that drew the same operation go through it together; rotations, shears and translations are
one affine sampling for all; what changes each level of an 8-bit image by itself goes through a table of the 256 levels,
with the same results. RandAugment samples bilinearly and rounds nothing to 8 bits between its operations;
TrivialAugment takes the nearest pixel and gives 8-bit values, as published.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from conveyor.data.transform.normalize import LUMA
from conveyor.numerics import keyed

IN_CACHE = 1 << 20
"""Values that go through an operation together: what it makes on the way then stays near the processor."""
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
    pixels = images
    strength = magnitude / HIGHEST
    for number in range(operations):
        draws = keyed.uniform(seed, "randaugment", number, epoch, samples, count=2)
        chosen = (draws[:, 0] * len(OPERATIONS)).to(torch.int64)
        signed = torch.where(draws[:, 1] < 0.5, -strength, strength)
        pixels = apply(pixels, chosen, signed, RANDAUGMENT, torch.float32)
    return pixels.to(torch.float32)


def trivialaugment(images: Tensor, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Augmented copies of images [B, H, W, C] in 0..255 by TrivialAugment, 8-bit values."""
    draws = keyed.uniform(seed, "trivialaugment", epoch, samples, count=3)
    chosen = (draws[:, 0] * len(OPERATIONS)).to(torch.int64)
    strength = (draws[:, 1] * (HIGHEST + 1)).floor() / HIGHEST
    signed = torch.where(draws[:, 2] < 0.5, -strength, strength)
    pixels = images.clamp(0, 255).to(torch.uint8) if images.is_floating_point() else images
    return apply(pixels, chosen, signed, TRIVIAL, torch.uint8)


def apply(images: Tensor, chosen: Tensor, signed: Tensor, space: Space, dtype: torch.dtype) -> Tensor:
    """To each image [H, W, C], float32 or 8-bit, its operation, an index of `OPERATIONS`, with a strength in -1..1.

    The results are of `dtype`, 8-bit ones without their fractions.

    `chosen` and `signed` [B] are on the host, wherever the images are: the host need not wait to know what is to be done.
    """
    device = images.device
    first_affine = OPERATIONS.index(AFFINE[0])
    numbers = chosen.clamp(max=first_affine)
    sorted_numbers, order = numbers.sort(stable=True)
    parts = []
    piece = max(1, IN_CACHE // images[0].numel())
    runs = zip(*_runs(sorted_numbers, order), strict=True)
    for number, where in ((number, where) for number, run in runs for where in run.split(piece)):
        # Whole images are taken and put back while their memory is in one piece.
        taken = images.index_select(0, where.to(device, non_blocking=True))
        if number == 0:
            parts.append(taken.to(dtype))
            continue
        if (found := by_table(OPERATIONS[number], taken, signed[where], space, dtype)) is not None:
            parts.append(found)
            continue
        pixels = taken.permute(0, 3, 1, 2)
        pixels = (pixels.contiguous() if OPERATIONS[number] in IN_PLANES else pixels).float()
        if number == first_affine:
            changed = affine(pixels, chosen[where] - first_affine, signed[where], space)
        else:
            changed = COLOUR[OPERATIONS[number]](
                pixels, signed[where].view(-1, 1, 1, 1).to(device, non_blocking=True), space
            )
        parts.append(changed.to(dtype).permute(0, 2, 3, 1))
    return torch.cat(parts).index_select(0, order.argsort().to(device, non_blocking=True))


def by_table(name: str, images: Tensor, signed: Tensor, space: Space, dtype: torch.dtype) -> Tensor | None:
    """An operation on 8-bit images [B, H, W, C] that looks at each level by itself; none where it does not."""
    if images.dtype != torch.uint8 or images.device.type != "cpu":
        return None
    levels, factor = torch.arange(256.0).view(1, 1, 16, 16), signed.view(-1, 1, 1, 1)
    if name in ("solarize", "posterize", "brightness"):
        tables = COLOUR[name](levels, factor, space).to(dtype)
    elif name == "contrast":
        mean = grey(images.permute(0, 3, 1, 2).contiguous().float()).mean((1, 2, 3), keepdim=True)
        tables = blend(mean, levels, 1 + space.blend * factor).to(dtype)
    elif images.shape[3] == 3 and (name == "equalize" or (name == "autocontrast" and dtype == torch.uint8)):
        pictures = [Image.fromarray(one) for one in images.numpy()]
        counts = torch.tensor([one.histogram() for one in pictures], dtype=torch.float32).view(-1, 3, 256)
        if name == "equalize":
            table = flat_levels(counts, images.shape[1] * images.shape[2])
        else:
            low, high = ((counts.flip(2) if last else counts).gt(0).int().argmax(2) for last in (False, True))
            table = stretched(levels, low.float(), 255.0 - high)
        rows = table.clamp(0, 255).to(torch.uint8).flatten(1).tolist()
        changed = [np.asarray(one.point(row)) for one, row in zip(pictures, rows, strict=True)]
        return torch.from_numpy(np.stack(changed)).to(dtype)
    else:
        return None
    changed = [np.take(table, one) for table, one in zip(tables.flatten(1).numpy(), images.numpy(), strict=True)]
    return torch.from_numpy(np.stack(changed))


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
    return moved.add_(space.fill)


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
    return stretched(pixels, *torch.aminmax(pixels.flatten(2), dim=2))  # planes, over which this is fast


def stretched(pixels: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """From low..high [B, C] to 0..255."""
    scale = torch.where(high > low, 255 / (high - low).clamp_min(1e-6), 1.0)
    low = torch.where(high > low, low, 0.0)
    return (pixels - low[..., None, None]).mul_(scale[..., None, None])


def equalize(pixels: Tensor, _: Tensor, __: Space = RANDAUGMENT) -> Tensor:
    """Each channel's histogram made flat: a value becomes the number of darker pixels in units of (all - brightest) / 255."""
    batch, channels, height, width = pixels.shape
    values = pixels.round().clamp(0, 255).to(torch.int64).reshape(batch * channels, -1)
    counts = torch.zeros(batch * channels, 256, device=pixels.device)
    counts.scatter_add_(1, values, torch.ones_like(values, dtype=torch.float32))
    return flat_levels(counts, height * width).gather(1, values).view(pixels.shape)


def flat_levels(counts: Tensor, pixels: int) -> Tensor:
    """What each of 256 levels becomes, from the counts of each, [..., 256], in images of `pixels` pixels."""
    brightest = counts.gather(-1, 255 - counts.flip(-1).gt(0).int().argmax(-1, keepdim=True))
    step = ((pixels - brightest) / 255).floor()
    darker = counts.cumsum(-1) - counts
    table = ((darker + (step / 2).floor()) / step.clamp_min(1)).floor().clamp(0, 255)
    return torch.where(step > 0, table, torch.arange(256.0, device=counts.device))


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
    return (pixels * (1 + space.blend * signed)).clamp_(0, 255)


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
    return (pixels - plain).mul_(factor).add_(plain).clamp_(0, 255)


def grey(pixels: Tensor) -> Tensor:
    if pixels.shape[1] != len(LUMA):
        return pixels.mean(1, keepdim=True)
    red, green, blue = pixels.split(1, 1)
    return (red * LUMA[0]).add_(green * LUMA[1]).add_(blue * LUMA[2])
