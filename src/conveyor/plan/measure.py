"""The cost of each unit, measured on this machine: every unit inside passes for the shares, whole passes for the sum.

With one thread the clock is the processor time of this process, which other programs disturb least.
Reading the clock between units takes time itself, so the times of the units are scaled to the time of the whole forward
and backward pass. Two batch sizes give `fixed + per_image * batch`.

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
from torch import Tensor, nn

from conveyor.measure.parts import REPEATS, backward_seconds, medians, now, timed
from conveyor.models.registry import blocks, build_from
from conveyor.models.units import trace, unit_seconds
from conveyor.numerics import foreach, recompute
from conveyor.numerics.allocator import keep_freed_memory
from conveyor.numerics.context import keyed
from conveyor.options import Options
from conveyor.options.model import ModelOptions
from conveyor.pipeline.cut import cut
from conveyor.pipeline.stage_io import as_tuple
from conveyor.plan.costs import RECOMPUTE, Linear
from conveyor.plan.pieces import block_pieces, piece_seconds, shared_out
from conveyor.spec import resolve
from conveyor.training.build_model import place_model

Times = dict[str, tuple[Linear, Linear]]
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
            line(small, samples[small][0][name][0], large, samples[large][0][name][0]),
            line(small, samples[small][0][name][1], large, samples[large][0][name][1]),
        )
        for name in samples[large][0]
    }
    return Measured(times, samples[large][1])


def line(small: int, at_small: float, large: int, at_large: float) -> Linear:
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
    inside = unit_seconds(model, images[:batch].contiguous(memory_format=torch.channels_last), repeats)
    sum_forward, sum_backward = (sum(times[kind] for times in inside.values()) or 1.0 for kind in (0, 1))
    units = {
        name: (one * forward / sum_forward, other * backward / sum_backward) for name, (one, other) in inside.items()
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

    `ahead` forward passes are done before a backward pass, as in a pipeline, where a micro-batch's tensors
    have left the cache by then.
    """
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    waiting: dict[str, list[tuple[float, Tensor]]] = {name: [] for name in variants}

    def loss_of(run: Pass) -> Tensor:
        logits = run(images)
        return nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))

    for _ in range(repeats + 1 + ahead):
        for name, run in variants.items():
            (loss,), forward = timed(loss_of, run)
            waiting[name].append((forward, loss))
            if len(waiting[name]) > ahead:
                forward, loss = waiting[name].pop(0)
                seconds[name].append((forward, backward_seconds([loss], [None])))
    return {name: medians(found) for name, found in seconds.items()}


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
    job = json.dumps({"model": options.model, "arguments": arguments, "image_size": image_size, "batch": batch})
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-P", "-c", "from conveyor.plan.measure import keep_busy; keep_busy()", job]
    with contextlib.ExitStack() as stack:
        processes = []
        for _ in range(others):
            processes.append(stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)))
            stack.callback(processes[-1].kill)
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # it is ready
        yield


def keep_busy(seconds: float = 600.0) -> None:
    """The other processes of `others_busy`: train until killed, or until the parent is gone."""
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    arguments = job["arguments"]
    model = ready(build_from(ModelOptions(model=job["model"]), **arguments))
    shape = (job["batch"], arguments["in_channels"], job["image_size"], job["image_size"])
    images = torch.randn(shape).to(memory_format=torch.channels_last)
    print("ready", flush=True)
    parent, end = os.getppid(), time.monotonic() + seconds
    while time.monotonic() < end and os.getppid() == parent:
        passes({"none": model}, images, repeats=1)
