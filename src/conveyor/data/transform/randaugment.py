"""RandAugment and TrivialAugment: which of `operations` each image gets, and how strongly.

RandAugment: a few operations drawn for each image, one common strength. TrivialAugment (Mueller and Hutter 2021, the wide
space): one operation, its strength one of 31, drawn for each image. What an image gets is a pure function of (seed, epoch,
sample). RandAugment moves images with bilinear sampling and a grey border, TrivialAugment takes the nearest pixel and leaves
black, as published.
"""

import dataclasses
import functools
import math

import torch
from torch import Tensor

from conveyor.data.transform.operations import CODES, WIDTH, source
from conveyor.numerics import keyed


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
LEVELS = tuple(level / HIGHEST for level in range(31))
"""Strengths of TrivialAugment."""
AFFINE = ("shear-x", "shear-y", "translate-x", "translate-y", "rotate")
OPERATIONS = (*CODES[:9], *AFFINE)


def randaugment(
    seed: int, epoch: int, samples: Tensor, size: tuple[int, int], *, operations: int, magnitude: float
) -> Tensor:
    """The plan of RandAugment for images of `size` (height, width)."""
    strength, parts = torch.tensor(magnitude / HIGHEST).item(), []  # a float32
    for number in range(operations):
        draws = keyed.uniform(seed, "randaugment", number, epoch, samples, count=2)
        parts.append((draws[:, 0] * len(OPERATIONS)).to(torch.int64) * 2 + (draws[:, 1] < 0.5))
    return every(RANDAUGMENT, size, (strength,))[torch.stack(parts, 1)]


def trivialaugment(seed: int, epoch: int, samples: Tensor, size: tuple[int, int]) -> Tensor:
    """The plan of TrivialAugment."""
    draws = keyed.uniform(seed, "trivialaugment", epoch, samples, count=3)
    chosen, level = (draws[:, :2] * torch.tensor([len(OPERATIONS), len(LEVELS)])).to(torch.int64).unbind(1)
    return every(TRIVIAL, size, LEVELS)[(chosen * len(LEVELS) + level) * 2 + (draws[:, 2] < 0.5)][:, None]


@functools.lru_cache(maxsize=16)
def every(space: Space, size: tuple[int, int], strengths: tuple[float, ...]) -> Tensor:
    """Each operation at each strength, to the one side and to the other: steps to take from, [14 S 2, WIDTH]."""
    signed = torch.tensor([side * strength for strength in strengths for side in (1, -1)], dtype=torch.float64)
    chosen = torch.arange(len(OPERATIONS)).repeat_interleave(len(signed))
    return step(chosen, signed.repeat(len(OPERATIONS)), space, size)


def step(chosen: Tensor, signed: Tensor, space: Space, size: tuple[int, int]) -> Tensor:
    """One step of a plan: to each image its operation, an index of `OPERATIONS`, with a strength in -1..1, float64."""
    which = chosen - len(CODES[:9])
    plan = torch.zeros(len(chosen), WIDTH, dtype=torch.float64)
    moves = CODES.index("nearest" if space.published else "bilinear")
    plan[:, 0] = torch.where(which < 0, chosen, moves)
    strength = signed.abs()
    first = 1 + space.blend * signed
    first = torch.where(chosen == CODES.index("solarize"), space.solarize * (1 - strength), first)
    first = torch.where(chosen == CODES.index("posterize"), (space.bits * strength).round(), first)
    centred = which == 4 if space.published else (which < 2) | (which == 4)
    positions = source(matrix(which, signed, space, size), *size, centred=centred)
    plan[:, 1:7] = torch.where(which[:, None] < 0, first[:, None], positions)
    plan[:, 7] = space.fill
    return plan


def matrix(which: Tensor, signed: Tensor, space: Space, size: tuple[int, int]) -> Tensor:
    """Where a moved image's pixels come from, float64 [B, 6] as in `source`; `which` is an index of `AFFINE`."""
    shear, angle = space.shear * signed, math.radians(space.angle) * signed
    down, right = (space.shift * (1 if space.shift > 1 else extent) * signed for extent in size)
    nothing = torch.zeros_like(signed)
    cos, sin = (torch.where(which == 4, one, two) for one, two in ((angle.cos(), nothing + 1), (angle.sin(), nothing)))
    return torch.stack(
        [
            cos,
            torch.where(which == 0, shear, -sin),
            torch.where(which == 2, right, nothing),
            torch.where(which == 1, shear, sin),
            cos,
            torch.where(which == 3, down, nothing),
        ],
        1,
    )
