"""Number formats of a run, as one value, and their application to a model from outside.

    32.32   float32 throughout
    16.32   activations and gradients are half numbers; weights are float32 and read through a rounding to half
    16.16   weights (and the optimiser's state) are half numbers too

Activations are half tensors, so what lies between the layers (rectifiers, sums, pooling) works on half numbers by itself
and takes half the memory. Convolutions and matrix products run in half where the hardware is fast at it; elsewhere
operands are widened, the arithmetic is float32 and the result is rounded: the same numbers, bit for bit, as rounding the
inputs, computing with float32 partial sums and rounding the output. Norms take statistics in float32 and keep running
statistics in float32 always; with 16.32 their scale and shift are not rounded.

`apply` replaces the forward of single layers of a model. Classes, state-dict names and what a tracer sees stay as they
are.
"""

import dataclasses
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from conveyor.numerics import half_ops, norm_act
from conveyor.numerics.convolution import Geometry, is_plain
from conveyor.numerics.half_choice import HalfChoice
from conveyor.numerics.half_policy import HalfPolicy, fast_half
from conveyor.options.precision import PrecisionOptions

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)


@dataclasses.dataclass(frozen=True, slots=True)
class Precision:
    """Number formats of a run: of the arithmetic (`compute`) and of the weights that are updated (`master`)."""

    compute: torch.dtype = torch.float32
    master: torch.dtype = torch.float32
    policy: HalfPolicy = HalfPolicy()

    @classmethod
    def from_options(cls, options: PrecisionOptions, choice: HalfChoice | None = None) -> "Precision":
        """What the options ask for; `choice` is what was measured for the run, if it was."""
        half: torch.dtype = getattr(torch, options.half_type)
        compute, master = (half if part == "16" else torch.float32 for part in options.precision.split("."))
        policy = HalfPolicy(
            dtype=half,
            stochastic=options.stochastic_rounding == "all",
            saturate=options.saturate,
            half_partials=options.half_partials,
            native=None if choice is None else choice.native,
            wide=frozenset() if choice is None else choice.wide,
            winograd=frozenset() if choice is None else choice.winograd,
        )
        return cls(compute, master, policy)

    @property
    def is_half(self) -> bool:
        return self.compute != torch.float32

    @property
    def fuses(self) -> bool:
        """Whether the kernels of norm and activation (`norm_act`) compute what this precision asks for."""
        rounds_to_nearest = not (self.policy.stochastic or self.policy.saturate)
        return not self.is_half or (self.compute in norm_act.TYPES and rounds_to_nearest)

    def apply(self, model: nn.Module) -> nn.Module:
        """Make the model compute in this precision; it is changed in place and returned."""
        if not self.is_half:
            return model
        if self.master != torch.float32:
            for parameter in model.parameters():
                parameter.data = parameter.data.to(self.master)
        for name, module in model.named_modules():
            _override(module, name, self.policy)
        return model

    def describe(self, device: torch.device) -> str:
        """One phrase for the run's first lines."""
        if not self.is_half:
            return "float32"
        half = str(self.compute).removeprefix("torch.")
        how = "native" if self.policy.is_native(device) else "float32 arithmetic on rounded operands"
        if device.type == "cpu" and how == "native" and not fast_half(device, self.compute):
            how = "native as the run began, slow on this processor, which has no instructions for it"
        masters = "half" if self.master != torch.float32 else "float32"
        return f"{half} ({how}), {masters} weights"


def _override(module: nn.Module, name: str, policy: HalfPolicy) -> None:
    """Give one layer its forward in half precision; containers and layers without parameters need none."""
    if isinstance(module, nn.Conv2d) and is_plain(module):
        module._conv_forward = types.MethodType(_ConvForward(policy, name), module)  # type: ignore[method-assign]
    elif type(module) is nn.Linear:
        module.forward = types.MethodType(_LinearForward(policy, name), module)  # type: ignore[method-assign]
    elif next(module.parameters(recurse=False), None) is not None and not _has_layers(module):
        forward = _NormForward if isinstance(module, _NORMS) else _WideForward
        module.forward = types.MethodType(forward(policy, name, type(module).forward), module)


def _has_layers(module: nn.Module) -> bool:
    """Whether a part of the module has parameters of its own; an activation inside a layer has none."""
    return any(next(child.parameters(), None) is not None for child in module.children())


@dataclasses.dataclass(frozen=True, slots=True)
class _ConvForward:
    """In place of `Conv2d._conv_forward`, which the layer's own forward calls."""

    policy: HalfPolicy
    label: str
    narrowed: half_ops.Narrowed = dataclasses.field(default_factory=half_ops.Narrowed)

    def __call__(self, layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        geometry = Geometry.of(layer, direct=True)
        return half_ops.convolution(x, weight, bias, geometry, self.policy, self.label, self.narrowed)


@dataclasses.dataclass(frozen=True, slots=True)
class _LinearForward:
    policy: HalfPolicy
    label: str

    def __call__(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return half_ops.linear(x, layer.weight, layer.bias, self.policy, self.label)


@dataclasses.dataclass(frozen=True, slots=True)
class _NormForward:
    """A norm: half in, float32 statistics, scale and shift, half out.

    The kernels for channels-last values (and for CUDA's batch norm) widen, compute in float32 and round once, at the
    end: what float32 followed by rounding gives, up to the order of summation. The CPU's kernels for other layouts
    round in between, and CUDA's group norm takes no float32 scale beside half values: there the input is widened.
    """

    policy: HalfPolicy
    label: str
    forward: Callable[..., Any]

    def __call__(self, layer: nn.Module, x: Tensor, *others: Any, **named: Any) -> Tensor:
        x = x.to(self.policy.dtype)
        with _parameters_as(layer, torch.float32, rounded_to=None):
            if not self._is_native(layer, x):
                return half_ops.rounded(self.forward(layer, x.float(), *others, **named), self.policy, self.label)
            y: Tensor = self.forward(layer, x, *others, **named)
        if y.requires_grad and x.device.type == "cpu" and not getattr(layer, "fused", False):
            y.register_hook(_channels_last)
        return y

    def _is_native(self, layer: nn.Module, x: Tensor) -> bool:
        if self.policy.stochastic or self.policy.saturate:
            return False
        if x.device.type == "cuda":
            return isinstance(layer, nn.modules.batchnorm._BatchNorm)
        return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def _channels_last(gradient: Tensor) -> Tensor:
    """The gradient in the layout whose backward kernels round once."""
    return gradient.contiguous(memory_format=torch.channels_last)


@dataclasses.dataclass(frozen=True, slots=True)
class _WideForward:
    """Any other layer with parameters: operands rounded to half, float32 inside, the result rounded."""

    policy: HalfPolicy
    label: str
    forward: Callable[..., Any]

    def __call__(self, layer: nn.Module, *inputs: Any, **named: Any) -> Any:
        half = self.policy.dtype
        wide = [
            value.to(half).float() if isinstance(value, Tensor) and value.is_floating_point() else value
            for value in inputs
        ]
        with _parameters_as(layer, torch.float32, rounded_to=half):
            result = self.forward(layer, *wide, **named)
        return half_ops.rounded(result, self.policy, self.label) if isinstance(result, Tensor) else result


@contextmanager
def _parameters_as(layer: nn.Module, dtype: torch.dtype, *, rounded_to: torch.dtype | None) -> Iterator[None]:
    """Inside, the layer's own parameters are seen in `dtype`, rounded to another type before; gradients flow back."""
    own = dict(layer._parameters)
    for name, parameter in own.items():
        if parameter is not None and (parameter.dtype != dtype or rounded_to is not None):
            value = parameter if rounded_to is None else parameter.to(rounded_to)
            layer._parameters[name] = value.to(dtype)  # type: ignore[assignment]
    try:
        yield
    finally:
        layer._parameters.update(own)
