"""Dropout and drop connect whose random numbers depend on (seed, update, slot, layer) and on nothing else.

Where and in which order the micro-batches run therefore never changes what is dropped.
"""

import torch
from torch import Tensor, nn

from conveyor.numerics.context import current
from conveyor.numerics.keyed import uniform


class Stochastic(nn.Module):
    """A layer that drops at random in training. `label` identifies the layer in its model; `name_layers` sets it."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.label = ""

    @property
    def p(self) -> float:
        """The rate under the name that torch's layers have for it: models of others read it."""
        return self.rate

    def kept(self, x: Tensor, per_sample: int) -> Tensor:
        """[N, per_sample] of x's type: 1 / (1 - rate) where kept (probability 1 - rate), else 0."""
        key = current()
        if key is None:
            draws = torch.rand(x.shape[0], per_sample, device=x.device)
        else:
            # Neighbours: a list of numbers would be copied to a GPU, which waits for what it was given before.
            slots = torch.arange(key.slots[0], key.slots[-1] + 1, device=x.device)
            count = x.shape[0] // len(key.slots) * per_sample
            draws = uniform(key.seed, key.update, slots, self.label, count=count).view(-1, per_sample)
        return (draws >= self.rate).to(x.dtype).div_(1.0 - self.rate) if self.rate < 1.0 else torch.zeros_like(draws)

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"


class Dropout(Stochastic):
    """Each value of [N, F] or [N, C, H, W] is zeroed with probability `rate`, the others are divided by 1 - rate.

    The numbers go to a picture in the order of N, H, W, C, whatever its memory format.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        kept = self.kept(x, x[0].numel())
        if x.dim() == 4:
            batch, channels, height, width = x.shape
            return x * kept.view(batch, height, width, channels).permute(0, 3, 1, 2)
        return x * kept.view(x.shape)


class DropConnect(Stochastic):
    """Each sample of [N, ...] is zeroed as a whole with probability `rate`, the others are divided by 1 - rate."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        return x * self.kept(x, 1).view(-1, *[1] * (x.dim() - 1))


def name_layers(model: nn.Module) -> None:
    """Give each dropping layer its module path as its label, before the model is cut into stages."""
    for name, module in model.named_modules():
        if isinstance(module, Stochastic):
            module.label = name
