"""Recomputation: keep only a module's inputs, run it again in the backward pass.

The second pass sees what the first saw (the same micro-batch key, the same random state) and leaves norm statistics
alone, so gradients are the same to the bit and statistics are taken once. Class and state-dict names of a module stay
as they are; a tracer sees through to the module's own forward.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

from conveyor.errors import UserError, did_you_mean
from conveyor.numerics import context


def apply(model: nn.Module, patterns: Sequence[str], blocks: Sequence[str]) -> list[str]:
    """Recompute the modules that `patterns` name; their names are returned.

    block: each of `blocks`, the residual blocks; stage: each direct child of the model that holds blocks (a stage of a
    pipeline is wrapped by `wrap` instead, when the model is cut); anything else is a regular expression that is
    searched for in module names. A module inside a chosen one is not chosen again: it would run three times.
    """
    modules = dict(model.named_modules())
    chosen: set[str] = set()
    for pattern in patterns:
        chosen |= _matches(pattern, list(modules), blocks)
    outermost = [name for name in modules if name in chosen and not _parents(name) & chosen]
    for name in outermost:
        wrap(modules[name])
    return outermost


def wrap(module: nn.Module) -> nn.Module:
    """Recompute the whole of `module` in its backward pass."""
    if not isinstance(module.forward, _Recomputed):
        module.forward = _Recomputed(module.forward)
    return module


def wrapped(model: nn.Module) -> list[str]:
    """Names of the modules that are recomputed."""
    return [name for name, module in model.named_modules() if isinstance(module.forward, _Recomputed)]


class _Recomputed:
    """The forward of a wrapped module."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def __call__(self, *inputs: Any) -> Any:
        if not torch.is_grad_enabled() or any(isinstance(value, fx.Proxy) for value in inputs):
            return self.forward(*inputs)
        key, again = context.current(), False

        def run(*values: Any) -> Any:
            nonlocal again
            if again:  # in the backward pass, perhaps outside of the micro-batch's context
                with context.use(key), context.frozen_statistics():
                    return self.forward(*values)
            again = True
            return self.forward(*values)

        return checkpoint(run, *inputs, use_reentrant=False)


def _matches(pattern: str, names: Sequence[str], blocks: Sequence[str]) -> set[str]:
    if pattern in ("block", "stage"):
        if not blocks:
            raise UserError(
                f"--recompute {pattern} needs a model with blocks: give a regular expression of module names"
            )
        return set(blocks) if pattern == "block" else {block.partition(".")[0] for block in blocks}
    try:
        found = {name for name in names if name and re.search(pattern, name)}
    except re.error as error:
        raise UserError(f"--recompute {pattern!r} is no regular expression: {error}") from None
    if not found:
        raise UserError(
            f"--recompute {pattern!r} matches no module of the model{did_you_mean(pattern, [*blocks, 'block', 'stage'])}"
        )
    return found


def _parents(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts))}


def saved_bytes(forward: Callable[[], Any]) -> int:
    """Bytes that one forward pass keeps for its backward pass, parameters not counted. Norm statistics stay as they are.

    Memory that several tensors share is counted once.
    """
    seen: dict[int, int] = {}
    kept: list[Any] = []

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks: AbstractContextManager[Any] = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with context.frozen_statistics(), hooks:
        # Holding the result keeps what was saved alive, so no address is used twice.
        kept.append(forward())
    return sum(seen.values())
