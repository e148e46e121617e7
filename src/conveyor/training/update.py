"""From the gradients of an update to new weights: norm, unscaling, clipping, the rule, norm statistics, averages."""

import torch
from torch import Tensor

from conveyor.models.layers import norms
from conveyor.numerics import foreach
from conveyor.numerics.loss_scale import LossScale
from conveyor.optim.average import Ema
from conveyor.optim.optimizer import Optimizer
from conveyor.training.lane import Lane
from conveyor.world.world import World


class Updater:
    """Applies one update, unless a dynamic loss scale finds that its gradients overflowed."""

    def __init__(
        self,
        lane: Lane,
        world: World,
        optimizer: Optimizer,
        loss_scale: LossScale,
        clip_norm: float | None,
        ema: Ema | None = None,
    ) -> None:
        self._world = world
        self.optimizer, self.loss_scale, self.ema = optimizer, loss_scale, ema
        self._clip_norm = clip_norm
        named = dict(lane.module.named_parameters())
        self._parameters = [named[name] for name in optimizer.names]
        # One place for each parameter of the whole model, so that squares are added in one order whoever holds them.
        everywhere = sorted(world.full_state({name: torch.zeros(1) for name in optimizer.names}))
        self._places = torch.tensor([everywhere.index(name) for name in optimizer.names], device=world.device).long()
        self._squares = torch.zeros(len(everywhere), dtype=torch.float64, device=world.device)
        self._norms = norms.batch_norms(lane.module)
        self.changing = False
        """Whether an update is half done; the loop says when it is complete."""
        self.gradient_norm: Tensor | None = None
        """The global norm of the last mean gradient before clipping, when it was needed; on the device."""

    def apply(self, update: int, lr: float) -> None:
        """Use up the gradients. They are sums over all slots of this stage, scaled by the loss scale."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        # A stage in which nothing is trained has no gradients, but its part in the sums over the stages.
        seen = gradients or [torch.zeros(0, device=self._world.device)]
        scale = self.loss_scale.value
        factor: float | Tensor = 1.0 / scale
        finite = True
        if self._clip_norm is not None or self.loss_scale.dynamic:
            squares = self._global_square(gradients)
            self.gradient_norm = squares.sqrt() / scale
            if self.loss_scale.dynamic:
                finite = _read(squares.isfinite())
            if self._clip_norm is not None:
                factor = (self._clip_norm / (self.gradient_norm + 1e-6)).clamp(max=1.0).float() / scale
        # Before the step, which may overwrite the gradients.
        measured = self.loss_scale.measure(seen)
        if measured is not None:
            self._world.sum_over_stages([measured])
        self.changing = True
        if finite:
            self.optimizer.step(gradients, lr, update, gradient_factor=factor)
            norms.commit(self._norms)
            if self.ema is not None:
                self.ema.update(self.optimizer.steps)
        else:
            norms.discard(self._norms)
        self.loss_scale.update(not finite, measured)
        for parameter in self._parameters:
            parameter.grad = None

    def _global_square(self, gradients: list[Tensor]) -> Tensor:
        """The sum of squares of all elements of the model's gradients, float64, a scalar on the device.

        Overflow of a half-precision gradient shows as inf.
        """
        self._squares.zero_()
        if gradients:
            norms_of = foreach.norm([g.float() if g.dtype.itemsize < 4 else g for g in gradients])
            self._squares[self._places] = torch.stack([norm.double() for norm in norms_of]).square()
        self._world.sum_over_stages([self._squares])
        return self._squares.sum()


def _read(flag: Tensor) -> bool:
    """The one value that an update may wait for: whether a moving loss scale has to skip it."""
    return bool(flag)
