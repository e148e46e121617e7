"""The times of a model's pieces, from the bounds of one residual block to the next, as the stages of a pipeline run them."""

import copy

import torch
from torch import Tensor, nn

from conveyor.measure import parts
from conveyor.models.graph import tensor_nodes, trace_graph
from conveyor.models.registry import blocks
from conveyor.models.units import trace
from conveyor.pipeline.cut import Stage, cut
from conveyor.plan.estimate import owners


def block_pieces(model: nn.Module) -> tuple[list[Stage], list[str | None]]:
    """The model cut wherever a residual block begins or ends, and the block of each unit."""
    units = trace(copy.deepcopy(model).to("meta"), 32, _channels(model))
    inside = owners(units, blocks(model))
    bounds = [place for place in range(1, len(units)) if inside[place] != inside[place - 1]]
    return cut(model, bounds), inside


def piece_seconds(
    model: nn.Module, images: Tensor, repeats: int = parts.REPEATS
) -> list[tuple[list[str], float, float]]:
    """(names of the units, forward, backward seconds) of each piece between the bounds of blocks, in real passes.

    A unit timed alone is not fused with what follows and finds its tensors in the cache; the pieces are run as in a stage,
    so that the balance between early layers (much memory) and late ones (many weights) is that of a run.
    """
    twin = copy.deepcopy(model)
    pieces, _ = block_pieces(twin)
    names = [node.name for node in tensor_nodes(trace_graph(twin))]
    seconds: list[list[tuple[float, float]]] = [[] for _ in pieces]
    for _ in range(repeats + 1):
        tensors: tuple[Tensor, ...] = (images,)
        taken: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...], float]] = []
        for piece in pieces:
            leaves = tuple(tensor.detach().requires_grad_(piece.stage_number > 0) for tensor in tensors)
            tensors, forward = parts.timed(piece, *leaves)
            taken.append((leaves, tensors, forward))
        gradients: tuple[Tensor | None, ...] = tuple(torch.full_like(one, 1e-3) for one in tensors)
        for number in reversed(range(len(pieces))):
            leaves, outputs, forward = taken[number]
            seconds[number].append((forward, parts.backward_seconds(outputs, gradients)))
            gradients = tuple(leaf.grad for leaf in leaves)
    return [
        ([names[place] for place in piece.stage_units], *parts.medians(found))
        for piece, found in zip(pieces, seconds, strict=True)
    ]


def shared_out(
    units: dict[str, tuple[float, float]], pieces: list[tuple[list[str], float, float]], whole: tuple[float, float]
) -> dict[str, tuple[float, float]]:
    """The whole pass shared out to the pieces by their own times, and inside a piece as the units were."""
    sums = (sum(forward for _, forward, _ in pieces) or 1.0, sum(backward for _, _, backward in pieces) or 1.0)
    result: dict[str, tuple[float, float]] = {}
    for names, forward, backward in pieces:
        times = (forward, backward)
        inside = [sum(units[name][kind] for name in names) for kind in (0, 1)]
        for name in names:
            one, other = (
                units[name][kind] / inside[kind] * times[kind] * whole[kind] / sums[kind] if inside[kind] else 0.0
                for kind in (0, 1)
            )
            result[name] = (one, other)
    return result


def _channels(model: nn.Module) -> int:
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    return first.in_channels
