"""Initial weights: the field's defaults for each family, variance scaling, and Glorot's rule over channels alone."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from conveyor.models.layers.norms import BatchNorm, GroupNorm

# The standard deviation of a standard normal cut off at two deviations; dividing by it restores the variance wanted.
_TRUNCATED_DEVIATION = 0.87962566103423978


def scaled_(weight: Tensor, scale: float, *, outwards: bool) -> None:
    """A normal cut off at two deviations, of variance scale / fan: variance scaling as TensorFlow counts fans.

    Of a convolution's weight [out, in / groups, k, k] fan in is in / groups x k x k, and fan out takes all output channels.
    """
    fan = weight.shape[0 if outwards else 1] * math.prod(weight.shape[2:])
    deviation = math.sqrt(scale / fan) / _TRUNCATED_DEVIATION
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


def kaiming_(weight: Tensor) -> None:
    """Normal with variance 2 / fan out (torch's counting: channels of one group's output times the kernel area)."""
    nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")


def glorot_channels_(weight: Tensor) -> None:
    """Uniform within sqrt(6 / (in + out)), channel counts alone: the kernel area is not counted."""
    bound = math.sqrt(6.0 / (weight.shape[0] + weight.shape[1]))
    nn.init.uniform_(weight, -bound, bound)


def dense_uniform_out_(weight: Tensor) -> None:
    """Uniform within 1 / sqrt(out): the classifier of torchvision's EfficientNets."""
    bound = 1.0 / math.sqrt(weight.shape[0])
    nn.init.uniform_(weight, -bound, bound)


def dense_normal_(weight: Tensor) -> None:
    """Normal with deviation 0.01: the classifiers of torchvision's MobileNets."""
    nn.init.normal_(weight, 0.0, 0.01)


Filler = Callable[[Tensor], object]


@torch.no_grad()
def initialise(
    model: nn.Module, init: str, *, conv: Filler = kaiming_, dense: Filler | None = None, scale: int = 1
) -> None:
    """Fill every weight of `model` in module order from torch's global generator.

    init: "torch" uses the family's `conv` and `dense` fillers (dense None keeps nn.Linear's own), "tensorflow"
    variance scaling (`scale` 1: ResNet's, by fan in; 2: EfficientNet's, by fan out, of grouped ones in), "glorot-channels" Glorot's rule with fans of channels alone, whatever the filter size.
    Norms start at weight 1 and bias 0. Biases start at 0, except those a None dense filler leaves to nn.Linear.
    A model on the meta device has nothing to fill.
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        return
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            if init == "tensorflow":
                scaled_(module.weight, float(scale), outwards=scale == 2 and module.groups == 1)
            else:
                (conv if init == "torch" else glorot_channels_)(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            filler = {"torch": dense, "tensorflow": nn.init.xavier_uniform_, "glorot-channels": glorot_channels_}[init]
            if filler is not None:
                filler(module.weight)
                nn.init.zeros_(module.bias)
        elif isinstance(module, (BatchNorm, GroupNorm)) and module.affine:
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
