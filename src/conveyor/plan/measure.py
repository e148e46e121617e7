"""The cost of each unit, measured on this machine: every unit alone for the shares, the whole model for the sum.

With one thread the clock is the processor time of this process, which other programs disturb least.
A unit alone finds its input in the cache, in the model it does not; so the times of the units are scaled to the time of
the whole forward and backward pass. Two batch sizes give `fixed + per_image * batch`.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from conveyor.models.graph import trace_graph
from conveyor.models.registry import build_from
from conveyor.options.model import ModelOptions
from conveyor.plan.costs import Linear

Times = dict[str, tuple[Linear, Linear]]
REPEATS = 3


def measured(
    model: nn.Module, image_size: int, in_channels: int, batches: Sequence[int], repeats: int = REPEATS
) -> Times:
    """Forward and backward seconds of each unit (node name) as lines through the two `batches`."""
    small, large = sorted(batches)
    samples = {batch: _sample(model, image_size, in_channels, batch, repeats) for batch in (small, large)}
    return {
        name: (
            _line(small, samples[small][name][0], large, samples[large][name][0]),
            _line(small, samples[small][name][1], large, samples[large][name][1]),
        )
        for name in samples[large]
    }


def _line(small: int, at_small: float, large: int, at_large: float) -> Linear:
    """The line through two points, without a negative slope or a negative fixed part."""
    if small == large:
        return Linear(0.0, at_large / large)
    slope = max(0.0, (at_large - at_small) / (large - small))
    fixed = max(0.0, at_large - slope * large)
    return Linear(fixed, (at_large - fixed) / large)


def _sample(
    model: nn.Module, image_size: int, in_channels: int, batch: int, repeats: int
) -> dict[str, tuple[float, float]]:
    images = torch.randn(batch, in_channels, image_size, image_size).to(memory_format=torch.channels_last)
    model.train()
    forward, backward = whole_pass(model, images, repeats)
    clock = _UnitClock(model, repeats)
    clock.run(images)
    sum_forward = sum(times[0] for times in clock.times.values()) or 1.0
    sum_backward = sum(times[1] for times in clock.times.values()) or 1.0
    return {
        name: (one * forward / sum_forward, other * backward / sum_backward)
        for name, (one, other) in clock.times.items()
    }


def whole_pass(model: nn.Module, images: Tensor, repeats: int = REPEATS) -> tuple[float, float]:
    """Seconds of the forward and of the backward pass of one micro-batch: the median of `repeats` after a warm-up."""
    forwards, backwards = [], []
    for _ in range(repeats + 1):
        start = _now()
        logits = model(images)
        loss = nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))
        middle = _now()
        torch.autograd.backward(loss)
        forwards.append(middle - start)
        backwards.append(_now() - middle)
    for parameter in model.parameters():
        parameter.grad = None
    return _median(forwards[1:]), _median(backwards[1:])


def _now() -> float:
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


class _UnitClock(fx.Interpreter):
    """Runs the model unit by unit, each cut off from the others, and times it forward and backward."""

    def __init__(self, model: nn.Module, repeats: int) -> None:
        super().__init__(fx.GraphModule(model, trace_graph(model)))
        self.times: dict[str, tuple[float, float]] = {}
        self._repeats = repeats

    def run_node(self, n: fx.Node) -> Any:
        if n.op not in ("call_module", "call_function", "call_method"):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        run: Callable[..., Any] = getattr(self, n.op)
        best_forward = best_backward = float("inf")
        for _ in range(self._repeats):
            inputs = [_leaf(value) for value in args]
            start = _now()
            output = run(n.target, tuple(inputs), kwargs)
            middle = _now()
            best_forward = min(best_forward, middle - start)
            if isinstance(output, Tensor) and output.requires_grad:
                gradient = torch.ones_like(output)
                start = _now()
                torch.autograd.backward(output, gradient)
                best_backward = min(best_backward, _now() - start)
            else:
                best_backward = 0.0
        self.times[n.name] = (best_forward, best_backward)
        return output.detach() if isinstance(output, Tensor) else output


def _leaf(value: Any) -> Any:
    """A tensor of its own that wants a gradient; a copy, since a unit may work in place."""
    if isinstance(value, Tensor) and value.is_floating_point():
        # An in-place unit refuses a leaf that wants a gradient: hand it the leaf's copy, as a layer before it would.
        leaf = value.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        return leaf.view_as(leaf) if leaf.dim() == 0 else leaf.mul(1.0)
    return value


def update_seconds_per_byte(size: int = 8_000_000) -> float:
    """Seconds per byte of weights of a momentum update: three passes over weights, gradients and momenta."""
    weights, gradients, momenta = ([torch.ones(size // 4)] for _ in range(3))
    best = float("inf")
    for _ in range(4):
        start = _now()
        torch._foreach_mul_(momenta, 0.9)
        torch._foreach_add_(momenta, gradients)
        torch._foreach_add_(weights, momenta, alpha=-0.1)
        best = min(best, _now() - start)
    return best / size


@contextlib.contextmanager
def others_busy(
    options: ModelOptions, arguments: dict[str, Any], image_size: int, batch: int, others: int
) -> Iterator[None]:
    """`others` further processes train the same model with one thread each during the block, as they will in the run."""
    if others <= 0:
        yield
        return
    job = json.dumps({"model": options.model, "arguments": arguments, "image_size": image_size, "batch": batch})
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-c", "from conveyor.plan.measure import keep_busy; keep_busy()"]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(others)
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(job + "\n")
            process.stdin.flush()
            process.stdout.readline()
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()


def keep_busy(seconds: float = 600.0) -> None:
    """The other processes of `others_busy`: train until killed, or until the parent is gone."""
    job = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    arguments = job["arguments"]
    model = build_from(ModelOptions(model=job["model"]), **arguments).train()
    shape = (job["batch"], arguments["in_channels"], job["image_size"], job["image_size"])
    images = torch.randn(shape).to(memory_format=torch.channels_last)
    print("ready", flush=True)
    parent, end = os.getppid(), time.monotonic() + seconds
    while time.monotonic() < end and os.getppid() == parent:
        whole_pass(model, images, repeats=1)
