"""Colour jitter: brightness, contrast, saturation and hue of each image changed at random, in a random order.

As torchvision defines it: a reach x draws a factor uniformly from max(0, 1 - x) to 1 + x, the hue turns by a share of the
circle from -x to x. Factors and order are a pure function of (seed, epoch, sample).
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from conveyor.data.transform.randaugment import IN_CACHE, blend, grey
from conveyor.numerics import keyed
from conveyor.options.units import jitter_reaches

PARTS = ("brightness", "contrast", "saturation", "hue")
ORDERS = torch.tensor(list(itertools.permutations(range(len(PARTS)))))


def jitter(images: Tensor, seed: int, epoch: int, samples: Tensor, given: Sequence[float]) -> Tensor:
    """Images [B, H, W, C] in 0..255 with other colours, float32; `samples` are on the host, wherever the images are."""
    reach = jitter_reaches(given)
    draws = keyed.uniform(seed, "jitter", epoch, samples, count=len(PARTS) + 1)
    used = [part for part in range(len(PARTS)) if reach[part]]
    kinds = ORDERS[(draws[:, -1] * len(ORDERS)).to(torch.int64)]
    orders = kinds[torch.isin(kinds, torch.tensor(used))].view(len(images), len(used))
    pixels = images.permute(0, 3, 1, 2).contiguous().to(torch.float32)  # planes: greys are sums over them
    piece = max(1, IN_CACHE // pixels[0].numel())  # images that stay in the cache from part to part
    pieces = [
        (one.tolist(), part)
        for one in orders.unique(dim=0)
        for part in (orders == one).all(dim=1).nonzero()[:, 0].split(piece)
    ]
    for order, where in pieces:
        there = where.to(images.device, non_blocking=True)
        taken = pixels.index_select(0, there)
        for part in order:
            low, high = (-reach[3], reach[3]) if part == 3 else (max(0.0, 1 - reach[part]), 1 + reach[part])
            amount = (low + draws[where, part] * (high - low)).view(-1, 1, 1, 1).to(images.device, non_blocking=True)
            taken = change(taken, PARTS[part], amount)
        pixels.index_copy_(0, there, taken)
    return pixels.permute(0, 2, 3, 1)


def change(pixels: Tensor, part: str, amount: Tensor) -> Tensor:
    """One of `PARTS` of images [B, C, H, W] changed by `amount` [B, 1, 1, 1]."""
    if part == "hue":
        return turn_hue(pixels, amount)
    if part == "brightness":
        return (pixels * amount).clamp_(0, 255)
    plain = grey(pixels)
    return blend(plain.mean((1, 2, 3), keepdim=True) if part == "contrast" else plain, pixels, amount)


def turn_hue(pixels: Tensor, share: Tensor) -> Tensor:
    """Hues turned by `share` of the circle; saturation and value stay. Images without three channels have no hue.

    With V the largest and C the largest minus the smallest channel, channel n of a colour of hue h (in sixths of the
    circle) is V - C clamp(min(k, 4 - k), 0, 1), k = (n + h) mod 6, n = 5, 3, 1 for red, green, blue.
    """
    if pixels.shape[1] != 3:
        return pixels
    red, green, blue = pixels.unbind(1)
    value, spread = pixels.amax(1), pixels.amax(1) - pixels.amin(1)
    safe = torch.where(spread > 0, spread, 1.0)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = hue + 6 * share[:, 0]
    found = torch.empty_like(pixels)
    for channel, n in enumerate((5, 3, 1)):
        k = hue + n
        k.sub_((k / 6).floor_().mul_(6))  # k mod 6: within two turns the differences are exact
        torch.sub(value, torch.minimum(k, 4 - k).clamp_(0, 1).mul_(spread), out=found[:, channel])
    return found
