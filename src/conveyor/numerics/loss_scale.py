"""The factor on the loss that lifts small gradients into the range of half precision.

    a number        fixed
    16..128         16, 32, 64, 128, each for an equal part of the run
    auto            halved when a gradient overflowed, doubled after 2000 good updates in a row
    histogram       every 8 updates: halved if more than one gradient value in 100,000 lies above 2^13, else doubled;
                    halved when a gradient overflowed as well

With the two automatic forms an update whose gradients overflowed is skipped. What `measure` counts stays on the device
until `update` reads it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from conveyor.options.units import loss_scale_span


@dataclasses.dataclass(slots=True)
class LossScale:
    """A fixed loss scale, and what the moving ones share. `value` multiplies the loss of the coming update."""

    value: float = 1.0
    updates: int = 0
    """Updates tried, skipped ones included."""
    skipped: int = 0
    dynamic: ClassVar[bool] = False
    """Whether an update whose gradients overflow is to be skipped."""

    def measure(self, gradients: Sequence[Tensor]) -> Tensor | None:
        """What `update` wants to know of this worker's gradients, to be summed over the stages; None: nothing."""
        return None

    def update(self, found_inf: bool, measured: Tensor | None = None) -> None:
        """Take note of an update. `found_inf`: it was skipped because a gradient was not finite."""
        self.updates += 1
        self.skipped += found_inf

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; plain numbers."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; what another form of loss scale wrote beside the common fields is passed over."""
        for field in dataclasses.fields(self):
            if field.name in state:
                setattr(self, field.name, type(getattr(self, field.name))(state[field.name]))


# A class with slots is made twice, so `super()` without arguments does not find its parent: the others name it.


@dataclasses.dataclass(slots=True)
class ScheduledLossScale(LossScale):
    """Doubles from `first` to `last` in equal spans of the run."""

    first: float = 1.0
    last: float = 1.0
    updates_total: int = 1

    def __post_init__(self) -> None:
        self._set()

    def update(self, found_inf: bool, measured: Tensor | None = None) -> None:
        LossScale.update(self, found_inf)
        self._set()

    def load(self, state: Mapping[str, Any]) -> None:
        self.updates, self.skipped = int(state.get("updates", 0)), int(state.get("skipped", 0))
        self._set()

    def _set(self) -> None:
        spans = round(self.last / self.first).bit_length()
        span = min(self.updates * spans // max(self.updates_total, 1), spans - 1)
        self.value = self.first * 2.0**span


@dataclasses.dataclass(slots=True)
class OverflowLossScale(LossScale):
    """Halved on overflow; doubled after `patience` good updates in a row."""

    value: float = 2.0**16
    good: int = 0
    patience: int = dataclasses.field(default=2000, kw_only=True)
    smallest: float = dataclasses.field(default=1.0, kw_only=True)
    largest: float = dataclasses.field(default=2.0**24, kw_only=True)
    dynamic: ClassVar[bool] = True

    def update(self, found_inf: bool, measured: Tensor | None = None) -> None:
        LossScale.update(self, found_inf)
        self.good = 0 if found_inf else self.good + 1
        if found_inf:
            self.value = max(self.value / 2, self.smallest)
        elif self.good >= self.patience:
            self.value = min(self.value * 2, self.largest)
            self.good = 0


@dataclasses.dataclass(slots=True)
class HistogramLossScale(LossScale):
    """Follows the share of large gradient values, so that overflow is avoided rather than repaired."""

    value: float = 1.0
    period: int = dataclasses.field(default=8, kw_only=True)
    edge: float = dataclasses.field(default=2.0**13, kw_only=True)
    share: float = dataclasses.field(default=1e-5, kw_only=True)
    largest: float = dataclasses.field(default=2.0**15, kw_only=True)
    dynamic: ClassVar[bool] = True

    def measure(self, gradients: Sequence[Tensor]) -> Tensor | None:
        """(values above the edge, all values), float64 on the device, in the updates that decide."""
        if (self.updates + 1) % self.period:
            return None
        return gradient_histogram(gradients, self.edge)

    def update(self, found_inf: bool, measured: Tensor | None = None) -> None:
        LossScale.update(self, found_inf)
        if found_inf:
            self.value = max(self.value / 2, 1.0)
        elif measured is not None:
            above, count = measured.tolist()
            self.value = max(self.value / 2, 1.0) if above > self.share * count else min(self.value * 2, self.largest)


@torch.no_grad()
def gradient_histogram(gradients: Sequence[Tensor], edge: float) -> Tensor:
    """The two bins: [number of |g| > edge, number of values], float64; values that are not finite count as large."""
    device = gradients[0].device
    above = torch.zeros((), dtype=torch.float64, device=device)
    for gradient in gradients:
        above += gradient.numel() - (gradient.abs() <= edge).sum()
    total = sum(gradient.numel() for gradient in gradients)
    return torch.stack([above, torch.full_like(above, total)])


def make_loss_scale(text: str, *, updates_total: int = 1) -> LossScale:
    """The loss scale that `--loss-scale TEXT` asks for; `updates_total` is what a doubling schedule is spread over."""
    span = loss_scale_span(text)
    if span == "auto":
        return OverflowLossScale()
    if isinstance(span, str):
        return HistogramLossScale()
    first, last = span
    return (
        LossScale(first) if first == last else ScheduledLossScale(first=first, last=last, updates_total=updates_total)
    )
