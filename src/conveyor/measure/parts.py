"""What parts of a model cost here: seconds of forward and backward passes. For the CPU alone: see `now`."""

import time
from collections.abc import Callable, Sequence
from statistics import median_high
from typing import Any

import torch
from torch import Tensor, fx

REPEATS = 3


def now() -> float:
    """The clock of measurements, in seconds: wall time, or with one thread the processor time of this process.

    Other programs disturb processor time least. Neither measures the passes of an accelerator.
    """
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def medians(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of (forward, backward) seconds, the first pass left out: libraries choose their kernels in it."""
    return median_high(one for one, _ in found[1:]), median_high(other for _, other in found[1:])


def timed(run: Callable[..., Any], *inputs: Any, clock: Callable[[], float] = now) -> tuple[tuple[Tensor, ...], float]:
    """What `run` gives as a tuple of tensors, and its seconds."""
    started = clock()
    outputs = run(*inputs)
    seconds = clock() - started
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,), seconds


def backward_seconds(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], clock: Callable[[], float] = now
) -> float:
    """Seconds of the backward pass from `outputs`; those without a gradient are skipped."""
    wanted = [(one, gradient) for one, gradient in zip(outputs, gradients, strict=True) if one.requires_grad]
    return timed(
        torch.autograd.backward, [one for one, _ in wanted], [gradient for _, gradient in wanted], clock=clock
    )[1]


def unit_seconds(graph: fx.GraphModule, images: Tensor, repeats: int = REPEATS) -> dict[str, tuple[float, float]]:
    """Forward and backward seconds of each node in whole passes: of `repeats` passes the fastest time of each.

    Forward, units run one after the other as in the model. Backward, a unit's time lasts from the moment when the gradient
    of its output is complete until the next such moment: the engine goes through the units in the opposite order. Give it a
    copy of a model: its statistics, gradients and random numbers change.
    """
    clock = _Clock(graph)
    clock.passes(images)  # Libraries choose their kernels in the first pass.
    best: dict[str, tuple[float, float]] = {}
    for _ in range(repeats):
        forward, backward = clock.passes(images)
        for node in graph.graph.nodes:
            one, other = best.get(node.name, (float("inf"), float("inf")))
            best[node.name] = (min(one, forward.get(node.name, 0.0)), min(other, backward.get(node.name, 0.0)))
    return best


class _Clock(fx.Interpreter):
    """Runs the model unit by unit and reads the clock in between."""

    def passes(self, images: Tensor) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of each node in one forward and one backward pass."""
        self._forward: dict[str, float] = {}
        self._moments: list[tuple[str, float]] = []
        logits = self.run(images)
        torch.autograd.backward(logits, torch.full_like(logits, 1e-3))
        ends = [moment for _, moment in self._moments[1:]] + [now()]
        backward: dict[str, float] = {}
        for (name, start), end in zip(self._moments, ends, strict=True):
            backward[name] = backward.get(name, 0.0) + end - start
        for parameter in self.module.parameters():
            parameter.grad = None
        return self._forward, backward

    def run_node(self, n: fx.Node) -> Any:
        started = now()
        value = super().run_node(n)
        self._forward[n.name] = now() - started
        if isinstance(value, Tensor) and value.requires_grad and n.op != "get_attr":
            value.register_hook(lambda gradient: self._moments.append((n.name, now())))
        return value
