"""Layer-wise adaptive moments (You et al. 2019), the form of timm."""

import dataclasses

import torch
from torch import Tensor

from conveyor.numerics import foreach
from conveyor.optim.rules import Adam, TensorLists, add_l2


@dataclasses.dataclass(frozen=True)
class Lamb(Adam):
    """m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, r = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + d w;

    w -= L q r with q = |w| / |r| of each layer, 1 where a norm is 0 or there is no decay d. The decay belongs inside the
    ratio. timm also clips the gradients to a global norm of 1: --clip-norm 1.
    """

    decay: float = 0.0

    def update(
        self, weights: list[Tensor], gradients: list[Tensor], state: TensorLists, *, rate: float, l2: float, step: int
    ) -> None:
        if not weights:
            return
        add_l2(weights, gradients, l2)
        means, squares = state["mean"], state["square"]
        foreach.mul_(means, self.beta1)
        foreach.add_(means, gradients, alpha=1 - self.beta1)
        foreach.mul_(squares, self.beta2)
        foreach.addcmul_(squares, gradients, gradients, 1 - self.beta2)
        roots = list(foreach.sqrt(squares))
        foreach.mul_(roots, (1 - self.beta2**step) ** -0.5)
        foreach.add_(roots, self.epsilon)
        steps = [torch.zeros_like(weight) for weight in weights]
        foreach.addcdiv_(steps, means, roots, 1 / (1 - self.beta1**step))
        if self.decay:
            foreach.add_(steps, weights, alpha=self.decay)
            own, other = torch.stack(foreach.norm(weights)), torch.stack(foreach.norm(steps))
            ratios = torch.where((own > 0) & (other > 0), own / other, torch.ones_like(own))
            foreach.mul_(steps, list(ratios.unbind()))
        foreach.add_(weights, steps, alpha=-rate)
