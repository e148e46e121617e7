"""Copies and modes of a model: an independent copy, a copy without weights, evaluation mode for a while."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def apart(model: nn.Module) -> nn.Module:
    """A copy without process groups: its passes communicate with no other worker."""
    twin: nn.Module = copy.deepcopy(model, _without_groups(model))
    return twin


def weightless(model: nn.Module) -> nn.Module:
    """A copy on the meta device that never takes memory for its tensors, without process groups."""
    # With its tensors already "copied" to meta, the deep copy takes no memory for them.
    memo = _without_groups(model)
    for tensor in [*model.parameters(), *model.buffers()]:
        meta = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(meta, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else meta
    twin: nn.Module = copy.deepcopy(model, memo)
    return twin


def _without_groups(model: nn.Module) -> dict[int, Any]:
    """A deep copy's memo in which the process groups of batch norms have become None: a group cannot be copied."""
    groups = [getattr(module, "span_group", None) for module in model.modules()]
    return {id(group): None for group in groups if group is not None}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module's own mode is restored."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
