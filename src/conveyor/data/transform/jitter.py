"""Colour jitter: brightness, contrast, saturation and hue of each image changed at random, in a random order.

As torchvision defines it: a reach x draws a factor uniformly from max(0, 1 - x) to 1 + x, the hue turns by a share of the
circle from -x to x. Factors and order are a pure function of (seed, epoch, sample).
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from conveyor.data.transform.operations import CODES, WIDTH
from conveyor.numerics import keyed
from conveyor.options.units import jitter_reaches

PARTS = ("brightness", "contrast", "color", "hue")
ORDERS = torch.tensor(list(itertools.permutations(range(len(PARTS)))))


def jitter(seed: int, epoch: int, samples: Tensor, given: Sequence[float]) -> Tensor:
    """The plan of colour jitter, a step for each part in the order that was drawn; parts without a reach do nothing."""
    reach = torch.tensor(jitter_reaches(given), dtype=torch.float64)
    draws = keyed.uniform(seed, "jitter", epoch, samples, count=len(PARTS) + 1).double()
    middle = torch.tensor([1.0, 1.0, 1.0, 0.0])
    low, high = middle - reach, middle + reach
    low[:3].clamp_min_(0)
    orders = ORDERS[(draws[:, -1] * len(ORDERS)).to(torch.int64)]
    codes = torch.tensor([CODES.index(name) for name in PARTS]) * (reach > 0)
    plan = torch.zeros(len(samples), len(PARTS), WIDTH, dtype=torch.float64)
    plan[..., 0] = codes[orders]
    plan[..., 1] = (low + draws[:, :-1] * (high - low)).gather(1, orders)
    return plan
