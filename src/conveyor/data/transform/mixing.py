"""Mixup and cutmix inside a micro-batch, and the label terms that go with them.

mixup: sample b becomes m_b x_b + (1 - m_b) x_{b-1}, m = max(l, 1 - l), l ~ Beta(alpha, alpha) for each sample.
cutmix: one box per micro-batch is taken from the batch rolled by 2 (by 1 when it has two samples); the box covers about
1 - lambda of the image, and the labels are weighted with the exact share of its pixels.
Both: four terms per sample, since the cutmix partner is itself a mixup of two; with `mix_switch` mixup is left to the
micro-batches without cutmix.
"""

import dataclasses
import math

import torch
from torch import Tensor

from conveyor.errors import UserError
from conveyor.numerics import keyed
from conveyor.numerics.copy_stream import sent
from conveyor.options.data import DataOptions

_ATTEMPTS = 24


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """Rows `top:bottom`, columns `left:right` that cutmix replaces."""

    top: int
    bottom: int
    left: int
    right: int

    def share(self, height: int, width: int) -> float:
        return (self.bottom - self.top) * (self.right - self.left) / (height * width)


@dataclasses.dataclass(frozen=True, slots=True)
class Mixing:
    """The mixing options of a run."""

    mixup_alpha: float = 0.0
    cutmix_lambda: float = 1.0
    cutmix_lambda_high: float | None = None
    cutmix_skip_probability: float = 0.0
    cutmix_draw: str = "fixed"
    mix_switch: bool = False

    @classmethod
    def from_options(cls, options: DataOptions) -> "Mixing":
        return cls(**{field.name: getattr(options, field.name) for field in dataclasses.fields(cls)})

    @property
    def mixup(self) -> bool:
        return self.mixup_alpha > 0

    @property
    def cutmix(self) -> bool:
        high = self.cutmix_lambda if self.cutmix_lambda_high is None else self.cutmix_lambda_high
        return min(self.cutmix_lambda, high) < 1 and self.cutmix_skip_probability < 1

    def __bool__(self) -> bool:
        return self.mixup or self.cutmix

    def check(self, batch: int) -> None:
        """Mixing needs a partner."""
        if self and batch < 2:
            what = " and ".join(name for name, used in (("mixup", self.mixup), ("cutmix", self.cutmix)) if used)
            raise UserError(
                f"{what} need{'' if ' and ' in what else 's'} a micro-batch of at least 2, not {batch}: raise --micro-batch-size"
            )

    def draw_lambda(self, seed: int, update: int, slot: int) -> float:
        """The share of the image that cutmix keeps in this micro-batch; 1 when it is skipped.

        fixed: the given lambda, or uniform in [lambda, lambda_high). exponential: skipped with probability
        1.55 lambda - 0.96, else 1 + ln(U)/4 with U uniform in (e^-4, 1).
        """
        skip, draw = keyed.uniform(seed, "cutmix", update, slot, count=2, dtype=torch.float64).tolist()
        if skip < self.cutmix_skip_probability:
            return 1.0
        if self.cutmix_draw == "exponential":
            # One uniform number decides twice: rescaled to the range above the first threshold it is uniform again.
            rest = self.cutmix_skip_probability
            skip = (skip - rest) / (1 - rest)
            if skip < 1.55 * self.cutmix_lambda - 0.96:
                return 1.0
            floor = math.exp(-4)
            return 1 + math.log(floor + float(draw) * (1 - floor)) / 4
        high = self.cutmix_lambda if self.cutmix_lambda_high is None else self.cutmix_lambda_high
        return self.cutmix_lambda + float(draw) * (high - self.cutmix_lambda)


def cut_box(kept: float, height: int, width: int, vertical: float, horizontal: float) -> Box:
    """A box with sides image x sqrt(1 - kept) whose centre is drawn over the image and moved so that all of it fits in."""
    side = math.sqrt(max(0.0, 1 - kept))
    rows, columns = (min(size, round(size * side)) for size in (height, width))
    top = min(max(int(vertical * height) - rows // 2, 0), height - rows)
    left = min(max(int(horizontal * width) - columns // 2, 0), width - columns)
    return Box(top, top + rows, left, left + columns)


def mix(
    images: Tensor, labels: Tensor, samples: Tensor, mixing: Mixing, *, seed: int, epoch: int, update: int, slot: int
) -> tuple[Tensor, list[tuple[Tensor, Tensor]] | None]:
    """Mix normalised images [B, H, W, C]; returns them and the label terms [(labels, weight [B])], None if unmixed.

    The terms are where the labels are, which may be the host for images on a device.
    """
    mixing.check(len(images))
    terms = [(labels, torch.ones(len(labels), device=labels.device))]
    mixed = False
    kept = mixing.draw_lambda(seed, update, slot) if mixing.cutmix else 1.0
    if mixing.mixup and not (mixing.mix_switch and kept < 1):
        factor = mixup_factors(mixing.mixup_alpha, seed, epoch, samples).to(labels.device)
        weight = sent(factor.view(-1, 1, 1, 1).to(images.dtype), images.device)
        images = torch.lerp(images.roll(1, 0), images, weight)
        terms = [(labels, factor), (labels.roll(1, 0), 1 - factor)]
        mixed = True
    if kept < 1:
        height, width = images.shape[1:3]
        place = keyed.uniform(seed, "cutmix box", update, slot, count=2, dtype=torch.float64).tolist()
        box = cut_box(kept, height, width, *place)
        roll = 2 if len(images) > 2 else 1
        partner = images.roll(roll, 0)
        images = images.clone()
        images[:, box.top : box.bottom, box.left : box.right] = partner[:, box.top : box.bottom, box.left : box.right]
        share = box.share(height, width)
        terms = [(y, w * (1 - share)) for y, w in terms] + [
            (y.roll(roll, 0), w.roll(roll, 0) * share) for y, w in terms
        ]
        mixed = True
    return images, terms if mixed else None


def mixup_factors(alpha: float, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """max(l, 1 - l) with l ~ Beta(alpha, alpha) for each sample, float32 [B]."""
    one, other = (_log_gamma(alpha, seed, epoch, samples, which) for which in (0, 1))
    drawn = torch.sigmoid(one - other)
    return torch.maximum(drawn, 1 - drawn).to(torch.float32)


def _log_gamma(alpha: float, seed: int, epoch: int, samples: Tensor, which: int) -> Tensor:
    """ln G, G ~ Gamma(alpha), float64 [B], by Marsaglia and Tsang's method for alpha + 1, times U^(1/alpha).

    A fixed number of attempts (each succeeds with at least 95 %) replaces the rejection loop: no synchronisation. The
    logarithm keeps small alpha exact, where G itself would underflow.
    """
    d = alpha + 1 - 1 / 3
    u = keyed.uniform(seed, "mixup", which, epoch, samples, count=3 * _ATTEMPTS + 1, dtype=torch.float64)
    radius, angle, accept = u[..., 1:].chunk(3, -1)
    normal = torch.sqrt(-2 * torch.log1p(-radius)) * torch.cos(2 * math.pi * angle)
    v = (1 + normal / math.sqrt(9 * d)) ** 3
    positive = v > 0
    safe = v.clamp_min(1e-300)
    good = positive & (torch.log1p(-accept) < 0.5 * normal**2 + d - d * v + d * safe.log())
    first = good.to(torch.int8).argmax(-1, keepdim=True)
    chosen = safe.log().gather(-1, first)[..., 0] + math.log(d)
    return chosen + torch.log1p(-u[..., 0]) / alpha
