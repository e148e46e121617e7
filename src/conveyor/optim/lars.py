"""Layer-wise adaptive rate scaling."""

import dataclasses

import torch
from torch import Tensor

from conveyor.numerics import foreach
from conveyor.optim.rules import Moments, TensorLists


@dataclasses.dataclass(frozen=True)
class Lars(Moments):
    """q = eta |w| / (|g| + d |w| + eps), or 1 if a norm is 0; m = mu m + L q (g + d w); w -= m.

    d is the weight decay and belongs inside the momentum here. Layers that are not adapted have q = 1 and d = 0.
    """

    momentum: float
    eta: float
    epsilon: float
    decay: float
    adapted: bool = True

    def update(
        self, weights: list[Tensor], gradients: list[Tensor], state: TensorLists, *, rate: float, l2: float, step: int
    ) -> None:
        moments = self.faded(weights, gradients, state, l2)
        if self.adapted and weights:
            ratios = self._ratios(weights, gradients)
            foreach.add_(gradients, weights, alpha=self.decay)
            foreach.mul_(gradients, list(ratios.unbind()))
        foreach.add_(moments, gradients, alpha=rate)
        foreach.sub_(weights, moments)

    def _ratios(self, weights: list[Tensor], gradients: list[Tensor]) -> Tensor:
        """The q of each layer; stays on the device."""
        weight_norms = torch.stack(foreach.norm(weights))
        gradient_norms = torch.stack(foreach.norm(gradients))
        ratios = self.eta * weight_norms / (gradient_norms + self.decay * weight_norms + self.epsilon)
        return torch.where((weight_norms > 0) & (gradient_norms > 0), ratios, torch.ones_like(ratios))
