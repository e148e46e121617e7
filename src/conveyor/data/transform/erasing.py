"""Random erasing (Zhong et al. 2017): a box of an image, drawn anew each time, is set to zero behind the normalisation.

As in torchvision: its area is 2 to 33 % of the image, its aspect (height over width) 0.3 to 3.3, uniform in the logarithm;
drawn up to ten times until it fits inside. All of it is a pure function of (seed, epoch, sample).
"""

import math

import torch
from torch import Tensor

from conveyor.numerics import keyed

AREA = (0.02, 0.33)
ASPECT = (0.3, 3.3)
ATTEMPTS = 10


def boxes(draws: Tensor, height: int, width: int) -> Tensor:
    """The first box of each row of `draws` [B, 10, 4] that fits: int64 [B, 4] (top, bottom, left, right), empty if none."""
    area, aspect, down, right = draws.unbind(2)
    area = height * width * (AREA[0] + area * (AREA[1] - AREA[0]))
    low, high = (math.log(end) for end in ASPECT)
    aspect = torch.exp(low + aspect * (high - low))
    rows, columns = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    top, left = (down * (height - rows + 1)).floor(), (right * (width - columns + 1)).floor()
    fits = (rows < height) & (columns < width)
    found = torch.stack([top, top + rows, left, left + columns], 2).to(torch.int64)
    first = fits.to(torch.int8).argmax(1)
    return found[torch.arange(len(found)), first] * fits.any(1, keepdim=True)


def draw(seed: int, epoch: int, samples: Tensor, probability: float, height: int, width: int) -> Tensor:
    """The box of each sample, as `boxes`; empty where the image stays whole."""
    chosen = keyed.uniform(seed, "erasing", epoch, samples, count=1, dtype=torch.float64)[:, 0] < probability
    found = torch.zeros(len(samples), 4, dtype=torch.int64)
    for attempts in (1, ATTEMPTS):  # most fit at once
        draws = keyed.uniform(seed, "erasing", epoch, samples[chosen], count=1 + 4 * attempts, dtype=torch.float64)
        found[chosen] = boxes(draws[:, 1:].view(-1, attempts, 4), height, width)
        chosen &= found[:, 1] == 0
    return found


def erase(images: Tensor, found: Tensor) -> Tensor:
    """Normalised images [B, H, W, C] with zeros in their boxes; they are changed in place."""
    # Through numpy: a slice of torch's takes longer than filling it.
    pixels = images.numpy() if images.device.type == "cpu" else images
    for number in found[:, 1].nonzero()[:, 0].tolist():
        top, bottom, left, right = found[number].tolist()
        pixels[number, top:bottom, left:right] = 0
    return images
