"""What each unit of a model costs here: the seconds of its own part of real forward and backward passes."""

import time
from typing import Any

import torch
from torch import Tensor, fx, nn

from conveyor.models.clone import apart
from conveyor.models.graph import tensor_nodes, trace_graph

REPEATS = 3


def unit_seconds(model: nn.Module, images: Tensor, repeats: int = REPEATS) -> list[float]:
    """Forward plus backward seconds of each unit, in order: of `repeats` passes the fastest time of each.

    The model is copied, so its statistics, gradients and random numbers stay as they are. Forward, units run one after
    the other as in the model. Backward, a unit's time lasts from the moment when the gradient of its output is complete
    until the next such moment: the engine goes through the units in the opposite order. For the CPU alone: the host's
    clock says nothing about the passes of an accelerator.
    """
    twin = apart(model).train()
    clock = _Clock(twin)
    names = [node.name for node in tensor_nodes(trace_graph(model))]
    best: dict[str, tuple[float, float]] = {}
    with torch.random.fork_rng(devices=[]):
        for number in range(repeats + 1):
            forward, backward = clock.passes(images)
            if number == 0:
                continue  # Libraries choose their kernels in the first pass.
            for name in names:
                before = best.get(name, (float("inf"), float("inf")))
                best[name] = (min(before[0], forward.get(name, 0.0)), min(before[1], backward.get(name, 0.0)))
    return [sum(best[name]) for name in names]


class _Clock(fx.Interpreter):
    """Runs the model unit by unit and looks at the time in between."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(fx.GraphModule(model, trace_graph(model)))
        self._forward: dict[str, float] = {}
        self._moments: list[tuple[str, float]] = []

    def passes(self, images: Tensor) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of each node in one forward and one backward pass."""
        self._forward, self._moments = {}, []
        logits = self.run(images)
        torch.autograd.backward(logits, torch.full_like(logits, 1e-3))
        ends = [moment for _, moment in self._moments[1:]] + [time.perf_counter()]
        backward: dict[str, float] = {}
        for (name, start), end in zip(self._moments, ends, strict=True):
            backward[name] = backward.get(name, 0.0) + end - start
        for parameter in self.module.parameters():
            parameter.grad = None
        return self._forward, backward

    def run_node(self, n: fx.Node) -> Any:
        started = time.perf_counter()
        value = super().run_node(n)
        self._forward[n.name] = time.perf_counter() - started
        if isinstance(value, Tensor) and value.requires_grad and n.op != "get_attr":
            value.register_hook(lambda gradient: self._moments.append((n.name, time.perf_counter())))
        return value
