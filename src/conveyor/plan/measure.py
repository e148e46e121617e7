"""The cost of each unit, measured on this machine: every unit alone for the shares, whole passes for the sum.

With one thread the clock is the processor time of this process, which other programs disturb least.
A unit alone finds its input in the cache, in the model it does not; so the times of the units are scaled to the time of
the whole forward and backward pass. Two batch sizes give `fixed + per_image * batch`.

The passes are those of a run: norms fused with what follows them, the model whole or as the stages of a pipeline hold it.
Recomputation is a pass of its own, in turn with the plain one: repeating the forward pass costs more than
the first time, since it runs under hooks, keeps what it makes, and finds the caches full of the gradients' tensors.
"""

import contextlib
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from conveyor.models.graph import trace_graph
from conveyor.models.registry import blocks, build_from
from conveyor.models.units import trace
from conveyor.numerics import foreach, recompute
from conveyor.numerics.allocator import keep_freed_memory
from conveyor.numerics.context import keyed
from conveyor.options import Options
from conveyor.options.model import ModelOptions
from conveyor.pipeline.cut import cut
from conveyor.pipeline.stage_io import as_tuple
from conveyor.plan.costs import RECOMPUTE, Linear
from conveyor.plan.pieces import block_pieces, median, now, piece_seconds, shared_out
from conveyor.spec import resolve
from conveyor.training.build_model import place_model

Times = dict[str, tuple[Linear, Linear]]
REPEATS = 3
Pass = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Measured:
    """Forward and backward seconds of each unit (node name), and the price of a second forward pass (`Model.again`)."""

    times: Times
    again: dict[str, float]


def ready(model: nn.Module, options: Options | None = None) -> nn.Module:
    """The model as a run on a CPU has it: `options` are those of a run (`planner.run_options`), without recomputation."""
    keep_freed_memory()
    whole = (options or Options()).replace(recompute=(), splits=(), stages=None, device_mapping=(), layout="auto")
    return place_model(model, resolve(whole), torch.device("cpu")).train()


def measured(
    model: nn.Module, image_size: int, in_channels: int, batches: Sequence[int], *, staged: bool = False,
    kinds: Sequence[str] = RECOMPUTE, joined: Callable[[int], int] = lambda batch: 1, repeats: int = REPEATS,
) -> Measured:  # fmt: skip
    """The costs of `model` (see `ready`) as lines through the two `batches`.

    `staged` when it will be cut; `kinds` are the kinds of recomputation whose price is wanted; `joined` says how many
    micro-batches of a size go through a whole model together. Times are those of one micro-batch.
    """
    small, large = sorted(batches)
    owners = _in_blocks(model, image_size, in_channels)
    wanted = ["none", *(kind for kind in kinds if kind != "none" and blocks(model))]
    samples = {
        batch: _sample(model, image_size, in_channels, batch, joined(batch), staged, wanted, owners, repeats)
        for batch in {small, large}
    }
    times = {
        name: (
            _line(small, samples[small][0][name][0], large, samples[large][0][name][0]),
            _line(small, samples[small][0][name][1], large, samples[large][0][name][1]),
        )
        for name in samples[large][0]
    }
    return Measured(times, samples[large][1])


def _line(small: int, at_small: float, large: int, at_large: float) -> Linear:
    """The line through two points, without a negative slope or a negative fixed part."""
    if small == large:
        return Linear(0.0, at_large / large)
    slope = max(0.0, (at_large - at_small) / (large - small))
    fixed = max(0.0, at_large - slope * large)
    return Linear(fixed, (at_large - fixed) / large)


def _in_blocks(model: nn.Module, image_size: int, in_channels: int) -> dict[str, bool]:
    """Whether each unit (node name) lies in a residual block."""
    names = tuple(f"{name}." for name in blocks(model))
    meta = copy.deepcopy(model).to("meta")
    return {unit.name: f"{unit.path}.".startswith(names) for unit in trace(meta, image_size, in_channels)}


def _sample(
    model: nn.Module, image_size: int, in_channels: int, batch: int, together: int, staged: bool,
    kinds: Sequence[str], in_blocks: dict[str, bool], repeats: int,
) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:  # fmt: skip
    """Seconds of each unit with one batch, and the price of each kind of recomputation."""
    images = torch.randn(batch * together, in_channels, image_size, image_size).to(memory_format=torch.channels_last)
    with keyed(0, 0, range(together), norm_batches=together):
        found = passes({kind: variant(model, kind, staged) for kind in kinds}, images, repeats, ahead=int(staged))
    found = {kind: (one / together, other / together) for kind, (one, other) in found.items()}
    forward, backward = found["none"]
    clock = _UnitClock(model, 2)
    clock.run(images[:batch].contiguous(memory_format=torch.channels_last))
    sum_forward = sum(times[0] for times in clock.times.values()) or 1.0
    sum_backward = sum(times[1] for times in clock.times.values()) or 1.0
    units = {
        name: (one * forward / sum_forward, other * backward / sum_backward)
        for name, (one, other) in clock.times.items()
    }
    if staged:
        units = shared_out(units, piece_seconds(model, images, repeats), (forward, backward))
    repeated = {
        "block": sum(times[0] for name, times in units.items() if in_blocks.get(name)) or forward,
        "stage": forward,
    }
    again = {
        kind: max(0.0, sum(seconds) - forward - backward) / repeated[kind] for kind, seconds in found.items() if kind != "none"
    }  # fmt: skip
    return units, again


def variant(model: nn.Module, kind: str, staged: bool) -> Pass:
    """A copy of the model that recomputes as `kind` says, whole or as the stages of a pipeline run it."""
    twin = copy.deepcopy(model)
    if not staged:
        if kind != "none":
            recompute.apply(twin, [kind], blocks(twin))
        return twin
    pieces, inside = block_pieces(twin) if kind == "block" else (cut(twin, []), [None])
    for piece in pieces:
        if kind == "stage" or (kind == "block" and inside[piece.stage_units.start] is not None):
            recompute.wrap(piece)

    def run(images: Tensor) -> Tensor:
        tensors: tuple[Tensor, ...] = (images,)
        for piece in pieces:
            tensors = as_tuple(piece(*tensors))
        return tensors[0]

    return run


def passes(
    variants: dict[str, Pass], images: Tensor, repeats: int = REPEATS, ahead: int = 0
) -> dict[str, tuple[float, float]]:
    """Seconds of the forward and of the backward pass of one micro-batch: medians, the variants in turn, after a warm-up.

    `ahead` forward passes are done before a backward pass gets its turn, as in a pipeline, where a micro-batch's tensors
    have left the cache by then.
    """
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    waiting: dict[str, list[tuple[float, Tensor]]] = {name: [] for name in variants}
    for _ in range(repeats + 1 + ahead):
        for name, run in variants.items():
            start = now()
            logits = run(images)
            loss = nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))
            middle = now()
            waiting[name].append((middle - start, loss))
            if len(waiting[name]) <= ahead:
                continue
            forward, loss = waiting[name].pop(0)
            middle = now()
            torch.autograd.backward(loss)
            seconds[name].append((forward, now() - middle))
    return {
        name: (median([one for one, _ in found[1:]]), median([other for _, other in found[1:]]))
        for name, found in seconds.items()
    }


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
            start = now()
            output = run(n.target, tuple(inputs), kwargs)
            middle = now()
            best_forward = min(best_forward, middle - start)
            if isinstance(output, Tensor) and output.requires_grad:
                gradient = torch.ones_like(output)
                start = now()
                torch.autograd.backward(output, gradient)
                best_backward = min(best_backward, now() - start)
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
        start = now()
        foreach.mul_(momenta, 0.9)
        foreach.add_(momenta, gradients)
        foreach.add_(weights, momenta, alpha=-0.1)
        best = min(best, now() - start)
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
    command = [sys.executable, "-P", "-c", "from conveyor.plan.measure import keep_busy; keep_busy()"]
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
    model = ready(build_from(ModelOptions(model=job["model"]), **arguments))
    shape = (job["batch"], arguments["in_channels"], job["image_size"], job["image_size"])
    images = torch.randn(shape).to(memory_format=torch.channels_last)
    print("ready", flush=True)
    parent, end = os.getppid(), time.monotonic() + seconds
    while time.monotonic() < end and os.getppid() == parent:
        passes({"none": model}, images, repeats=1)
