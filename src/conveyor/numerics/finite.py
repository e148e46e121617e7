"""Values that are not finite: is there one, and which layer made it first."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from conveyor.errors import UserError
from conveyor.numerics import context

OUTPUT = "output"


class NotFiniteValueError(UserError):
    """A layer made a value that is not finite; `layer` is its name, `what` its output or gradient."""

    def __init__(self, layer: str, what: str, values: Tensor) -> None:
        self.layer, self.what = layer, what
        counts = f"{int(values.isnan().sum())} NaN and {int(values.isinf().sum())} infinite of {values.numel()} values"
        super().__init__(
            f"the {what} of {layer} is not finite ({counts}): lower --learning-rate, or choose a smaller --loss-scale, "
            "--saturate or another --precision"
        )


def is_finite(values: Tensor) -> Tensor:
    """Whether all values are finite, a bool scalar on the device; one pass, no temporary (NaN survives min and max)."""
    if values.numel() == 0:
        return torch.ones((), dtype=torch.bool, device=values.device)
    low, high = torch.aminmax(values.detach())
    return low.isfinite() & high.isfinite()


def bad_weight(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor with a value that is not finite."""
    floating = [(name, value) for name, value in named if value.is_floating_point()]
    if not floating:
        return None
    flags = torch.stack([is_finite(value) for _, value in floating]).tolist()
    return next((name for (name, _), good in zip(floating, flags, strict=True) if not good), None)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something that is not finite. The smallest of several findings is the cause: weights before outputs, an output
    before those of later parts of the model, gradients last and those of later parts first."""

    rank: int
    place: int
    phrase: str = dataclasses.field(compare=False)

    @classmethod
    def weights(cls, name: str, part: int = 0) -> "Finding":
        return cls(0, part, f"the weights {name}")

    @classmethod
    def value(cls, found: NotFiniteValueError, part: int = 0) -> "Finding":
        output = found.what == OUTPUT
        return cls(1 if output else 2, part if output else -part, f"the {found.what} of {found.layer}")


@contextmanager
def watch(
    model: nn.Module, *, gradients: bool = True, report: Callable[[NotFiniteValueError], None] | None = None
) -> Iterator[None]:
    """Inside, the first layer whose output (or whose output's gradient) is not finite raises `NotFiniteValueError`.

    With `report` nothing is raised: it is called for every bad value, in the order of the computation. Every layer's
    values are read back, so the host can queue no work ahead of a GPU; meant for `--fp-exceptions` and for the search after the fact.
    With an automatic loss scale gradients overflow now and then by design: leave them out.
    """
    handles = [
        module.register_forward_hook(_OutputCheck(name, gradients, report or _raise))
        for name, module in model.named_modules()
        if next(module.children(), None) is None
    ]
    try:
        with context.layer_by_layer():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _raise(found: NotFiniteValueError) -> None:
    raise found


class _OutputCheck:
    """A forward hook that looks at what a layer returns."""

    def __init__(self, name: str, gradients: bool, report: Callable[[NotFiniteValueError], None]) -> None:
        self.name, self.gradients, self.report = name, gradients, report

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        for value in output if isinstance(output, tuple | list) else (output,):
            # A pipeline finds out its shapes with tensors that hold no values.
            if not isinstance(value, Tensor) or not value.is_floating_point() or value.is_meta:
                continue
            if not is_finite(value):
                self.report(NotFiniteValueError(self.name, OUTPUT, value.detach()))
            if self.gradients and value.requires_grad:
                value.register_hook(self.check_gradient)

    def check_gradient(self, gradient: Tensor) -> None:
        """A tensor hook."""
        if not is_finite(gradient):
            self.report(NotFiniteValueError(self.name, "gradient of the output", gradient))


def first_bad_layer(
    parts: Sequence[nn.Module], run: Callable[[], Any], numbers: Sequence[int] = (0,)
) -> Finding | None:
    """The first thing that is not finite when `run` repeats a pass: weights, output or gradient.

    `parts` are the pieces of the model that this worker holds and `numbers` their places in it. `run` computes what
    went wrong before (forward, or forward and backward) with the same micro-batch key. It is never cut short, because
    other workers may depend on its messages. Norm statistics are left alone and the gradients that stood in the
    parameters are put back.
    """
    found: list[Finding] = []
    before = [(parameter, parameter.grad) for part in parts for parameter in part.parameters()]
    try:
        for parameter, _ in before:
            parameter.grad = None
        with context.frozen_statistics(), ExitStack() as watches:
            for part, number in zip(parts, numbers, strict=True):
                name = bad_weight(part.named_parameters())
                found += [Finding.weights(name, number)] if name is not None else []
                watches.enter_context(watch(part, report=_noting(found, number)))
            run()
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient
    return min(found, default=None)


def _noting(found: list[Finding], number: int) -> Callable[[NotFiniteValueError], None]:
    """Adds to `found`; `min` returns the first of equals, so the order of the computation decides inside a part."""
    return lambda value: found.append(Finding.value(value, number))
