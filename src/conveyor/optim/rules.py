"""Update rules on lists of float32 tensors. Each changes weights, gradients and state in place.

L is the learning rate, g the gradient, w the weight. The L2 term lambda w belongs to the gradient; rules with a fused
kernel take it as an argument so that it costs no extra pass over memory.
"""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from conveyor.numerics import foreach

TensorLists = Mapping[str, list[Tensor]]


class Rule(Protocol):
    """How weights follow from gradients."""

    @property
    def state(self) -> Mapping[str, float]:
        """The kinds of state and the value each starts from."""

    def update(
        self, weights: list[Tensor], gradients: list[Tensor], state: TensorLists, *, rate: float, l2: float, step: int
    ) -> None:
        """One update; `step` counts the updates that were made, from 1."""


def add_l2(weights: list[Tensor], gradients: list[Tensor], l2: float) -> None:
    """g += lambda w."""
    if l2:
        foreach.add_(gradients, weights, alpha=l2)


class Moments:
    """What the rules with one moment m per weight share."""

    momentum: float

    @property
    def state(self) -> Mapping[str, float]:
        return {"momentum": 0.0}

    def faded(self, weights: list[Tensor], gradients: list[Tensor], state: TensorLists, l2: float) -> list[Tensor]:
        """g += lambda w, m = mu m; returns the m, to which the step of this update is still to be added."""
        add_l2(weights, gradients, l2)
        moments = state["momentum"]
        foreach.mul_(moments, self.momentum)
        return moments


@dataclasses.dataclass(frozen=True)
class Momentum(Moments):
    """gradient form: m = mu m + g, w -= L m; rate form: m = mu m + L g, w -= m. With mu = 0 plain SGD.

    Nesterov's form steps by g + mu m (L g + mu m) with the new m. The two forms differ while L changes.
    """

    momentum: float = 0.0
    nesterov: bool = False
    form: str = "gradient"

    @property
    def state(self) -> Mapping[str, float]:
        return {"momentum": 0.0} if self.momentum else {}

    def update(
        self, weights: list[Tensor], gradients: list[Tensor], state: TensorLists, *, rate: float, l2: float, step: int
    ) -> None:
        if self.momentum and self.form == "rate":
            moments = self.faded(weights, gradients, state, l2)
            foreach.add_(moments, gradients, alpha=rate)
            if self.nesterov:
                foreach.add_(weights, moments, alpha=-self.momentum)
                foreach.add_(weights, gradients, alpha=-rate)
            else:
                foreach.sub_(weights, moments)
            return
        # The gradient form with a zero buffer at the start is torch's: its first step sets m = g.
        foreach.fused_sgd_(
            weights,
            gradients,
            state["momentum"] if self.momentum else [],
            weight_decay=l2,
            momentum=self.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=self.nesterov and self.momentum > 0,
            maximize=False,
            is_first_step=False,
        )


@dataclasses.dataclass(frozen=True)
class RmsProp:
    """tensorflow form: s starts at 1, s += (1 - rho)(g^2 - s), m = mu m + L g / sqrt(s + eps), w -= m.

    torch form: s starts at 0, same s, m = mu m + g / (sqrt(s) + eps), w -= L m.
    """

    decay: float
    momentum: float
    epsilon: float
    form: str = "tensorflow"

    @property
    def state(self) -> Mapping[str, float]:
        kinds = {"square": 1.0 if self.form == "tensorflow" else 0.0}
        return kinds | {"momentum": 0.0} if self.momentum else kinds

    def update(
        self, weights: list[Tensor], gradients: list[Tensor], state: TensorLists, *, rate: float, l2: float, step: int
    ) -> None:
        add_l2(weights, gradients, l2)
        squares = state["square"]
        foreach.mul_(squares, self.decay)
        foreach.addcmul_(squares, gradients, gradients, 1 - self.decay)
        if self.form == "tensorflow":
            roots = list(foreach.add(squares, self.epsilon))
            foreach.sqrt_(roots)
        else:
            roots = list(foreach.sqrt(squares))
            foreach.add_(roots, self.epsilon)
        inside = rate if self.form == "tensorflow" else 1.0
        if not self.momentum:
            foreach.addcdiv_(weights, gradients, roots, -rate)
            return
        moments = state["momentum"]
        foreach.mul_(moments, self.momentum)
        foreach.addcdiv_(moments, gradients, roots, inside)
        foreach.add_(weights, moments, alpha=-1.0 if self.form == "tensorflow" else -rate)


@dataclasses.dataclass(frozen=True)
class Adam:
    """m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, w -= L (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).

    AdamW is the same rule: here weight decay is decoupled for every rule and L2 is an option of its own.
    """

    beta1: float
    beta2: float
    epsilon: float

    @property
    def state(self) -> Mapping[str, float]:
        return {"mean": 0.0, "square": 0.0}

    def update(
        self, weights: list[Tensor], gradients: list[Tensor], state: TensorLists, *, rate: float, l2: float, step: int
    ) -> None:
        if not weights:
            return
        count = torch.full((), float(step), device=weights[0].device)  # torch.tensor would wait for a GPU
        foreach.fused_adam_(
            weights,
            gradients,
            state["mean"],
            state["square"],
            [],
            [count] * len(weights),
            lr=rate,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=l2,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
        )
