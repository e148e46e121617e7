"""`--compile`: the training passes of a model's blocks through torch.compile, one region for each block.

Where the stages of a pipeline are cut never changes a region (`--compile` cuts between blocks only) and shapes are fixed,
so all layouts run the same code. What a compiler cannot follow runs as it is between the parts of a region: layers in half
precision that are kept rounded once per update, layers that draw random numbers for their micro-batch, norms that ask
other workers. Importing this module brings the compiler in, which takes seconds.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from conveyor.errors import UserError, first_line
from conveyor.numerics import context

VARIANTS = 256
"""Regions that may be compiled from the same code: one for each shape of a block, in its first and its repeated pass.

The library's own limit is 8, after which it would silently stop compiling, at another block on each layout.
"""


def apply(model: nn.Module, blocks: Sequence[str], opaque: Iterable[nn.Module]) -> None:
    """Compile the training passes of `blocks`; the layers `opaque` run as they are."""
    for module in opaque:
        module.forward = _Opaque(module.forward)
    for name in blocks:
        wrap(model.get_submodule(name))


def wrap(module: nn.Module) -> None:
    """Compile the training passes of the whole of `module`."""
    module.forward = _Compiled(module.forward)


def check(device: torch.device) -> None:
    """Refuse a machine on which nothing can be compiled; finds out by compiling something small."""
    try:
        torch.compile(_small, dynamic=False)(torch.ones(8, device=device))
    except Exception as error:  # a compiler that is missing or broken fails in ways of its own
        needs = "Triton" if device.type == "cuda" else "a C++ compiler"
        raise UserError(
            f"--compile needs {needs} that works ({first_line(error)}): install one, or leave --compile out"
        ) from error


def _small(x: Tensor) -> Tensor:
    return x.sin() + 1


class _Compiled:
    """The forward of a compiled module. Validation, tracing and whoever looks at single layers get the module's own."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward
        self._region: Callable[..., Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        traced = any(isinstance(value, fx.Proxy) or (isinstance(value, Tensor) and value.is_meta) for value in inputs)
        if traced or not torch.is_grad_enabled() or context.is_layer_by_layer():
            return self.forward(*inputs)
        if self._region is None:
            compiler: Any = torch.compile  # its overloads do not know all of its arguments
            self._region = compiler(self.forward, dynamic=False, recompile_limit=VARIANTS)
        with context.pinned():
            return self._region(*inputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Compiled":
        return _Compiled(copy.deepcopy(self.forward, memo))  # a region belongs to the module it was made of


class _Opaque:
    """A call that is never compiled."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    @torch.compiler.disable
    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return _ordered(self.call(*map(_ordered, inputs), **named))


def _ordered(value: Any) -> Any:
    """An image in the channels-last order of memory, and its gradient too; anything else as it is.

    The compiler chooses the order of a region's gradients, a pipeline sends them channels-last: random numbers that are
    dealt to the elements in the order of memory, and sums, would differ where a stage begins.
    """
    if not isinstance(value, Tensor) or value.dim() != 4:
        return value
    value = _channels_last(value)
    if value.requires_grad:
        value.register_hook(_channels_last)
    return value


def _channels_last(value: Tensor) -> Tensor:
    return value.contiguous(memory_format=torch.channels_last)
