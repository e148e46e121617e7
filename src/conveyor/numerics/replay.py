"""A call whose intermediate tensors are not kept: its backward pass makes them by calling again.

While the call runs, each tensor that autograd wants to save is replaced by its number. When the first of them is wanted
back, the call is repeated up to the last one of them, and what it saves this time is handed out by number. Inputs are
saved by a node of their own, outside: in nested calls they are intermediate tensors of the outer one and not kept either.

torch.utils.checkpoint works alike, but imports the compiler at its first use, which takes several seconds.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from conveyor.numerics import context


def replayed(call: Callable[..., Any], *inputs: Any) -> Any:
    """`call(*inputs)`; to be repeated in the backward pass with the same key and random state, without statistics."""
    repeat = _Repeat(call, inputs)
    with saved_tensors_hooks(repeat.number, repeat.recover):
        return call(*inputs)


class _EnoughError(Exception):
    """The repeated call has made everything that is wanted."""


class _Repeat:
    """One call: what is needed to repeat it, and what the repetition recovered."""

    def __init__(self, call: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        self.call = call
        self.inputs = [None if isinstance(value, Tensor) else value for value in inputs]
        self.places = [place for place, value in enumerate(inputs) if isinstance(value, Tensor)]
        tensors = [inputs[place] for place in self.places]
        self.wants_gradient = [tensor.requires_grad for tensor in tensors]
        anchor = torch.empty(0, requires_grad=True)
        self.saver: Any = _SaveInputs.apply(anchor, *tensors).grad_fn
        self.key = context.current()
        self.device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        self.random = torch.get_rng_state()
        self.cuda_random = None if self.device is None else torch.cuda.get_rng_state(self.device)
        self.count = 0
        self.recovered: dict[int, Tensor] = {}

    def number(self, tensor: Tensor) -> int:
        """In the first pass: what is kept in place of a tensor."""
        self.count += 1
        return self.count - 1

    def recover(self, number: int) -> Tensor:
        """In the backward pass: the tensor with this number; it is forgotten here, since it is rarely wanted twice."""
        if number not in self.recovered:
            self._run_again()
        return self.recovered.pop(number)

    def _run_again(self) -> None:
        found: dict[int, Tensor] = {}

        def collect(tensor: Tensor) -> None:
            found[len(found)] = tensor.detach()
            if len(found) == self.count:
                raise _EnoughError

        inputs = list(self.inputs)
        for place, tensor, wanted in zip(self.places, self.saver.saved_tensors, self.wants_gradient, strict=True):
            inputs[place] = tensor.detach().requires_grad_(wanted)
        devices = [] if self.device is None else [self.device]
        with (
            torch.random.fork_rng(devices=devices),
            torch.enable_grad(),
            context.use(self.key),
            context.frozen_statistics(),
            saved_tensors_hooks(collect, _never),
        ):
            torch.set_rng_state(self.random)
            if self.cuda_random is not None and self.device is not None:
                torch.cuda.set_rng_state(self.cuda_random, self.device)
            try:
                self.call(*inputs)
            except _EnoughError:
                pass
        if len(found) != self.count:
            raise RuntimeError(
                f"a recomputed module saved {self.count} tensors in its first pass and {len(found)} in its second: "
                "it must do the same both times"
            )
        self.recovered = found


class _SaveInputs(torch.autograd.Function):
    """Holds the inputs of a call, guarded against being overwritten; no gradient passes through it."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise AssertionError("nothing depends on the saved inputs")


def _never(packed: Any) -> Tensor:
    raise AssertionError("the repeated call has no backward pass of its own")
