"""A pipelined lane: this worker holds some stages of the model, the lane's other workers the rest."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from conveyor import models
from conveyor.data.batch import Batch, Target
from conveyor.errors import UserError
from conveyor.models import units
from conveyor.models.layers import norms
from conveyor.monitor import timeline
from conveyor.numerics import finite, recompute
from conveyor.numerics.context import keyed
from conveyor.options.units import size_in_bytes
from conveyor.pipeline.assign import Part, assign
from conveyor.pipeline.cut import Stage, cut, shared_parameters
from conveyor.pipeline.runtime import Pipeline
from conveyor.spec import RunSpec
from conveyor.training.loss import TALLY, tally
from conveyor.training.split_units import split_units, unit_ranges
from conveyor.training.whole_model_lane import LaneWork, joined_inputs
from conveyor.world.norm_statistics import StatisticsSum
from conveyor.world.world import World

_logger = logging.getLogger(__name__)

LABELS = 1
"""Tag of the messages with labels: they must not be taken for activations between the same two workers."""


def cut_for(spec: RunSpec, model: nn.Module, parts: Sequence[Part]) -> tuple[list[Stage], list[Part]]:
    """The pieces of the model, and the workers' parts counted in pieces.

    A piece is a stage; recomputed and compiled modules inside stages become pieces of their own, since cutting dissolves
    modules. `--recompute stage` means the stages of the pipeline, or their pieces.
    """
    found = units.trace(model, spec.subject.image_size, spec.subject.in_channels)
    points = split_units(spec, model, found)
    recomputed = [] if "stage" in spec.options.batch.recompute else unit_ranges(found, recompute.wrapped(model))
    compiled = unit_ranges(found, models.blocks(model)) if spec.options.precision.compile else []
    inner = {edge for one in (*recomputed, *compiled) for edge in (one.start, one.stop)} - {0, len(found)}
    bounds = sorted({*points, *inner})
    pieces = cut(model, bounds)
    for piece in pieces:
        if _inside(piece, compiled):
            from conveyor.numerics.compiled import wrap

            wrap(piece)
        if _inside(piece, recomputed) or "stage" in spec.options.batch.recompute:
            recompute.wrap(piece)
    starts = [0, *points, len(found)]
    number_at = {0: 0, **{bound: number for number, bound in enumerate(bounds, start=1)}, len(found): len(pieces)}
    edges = [number_at[start] for start in starts]
    return pieces, [Part(part.worker, edges[part.first], edges[part.stop]) for part in parts]


def _inside(piece: Stage, ranges: Sequence[range]) -> bool:
    return any(one.start <= piece.stage_units.start and piece.stage_units.stop <= one.stop for one in ranges)


def _schedule(spec: RunSpec, world: World) -> str:
    """The schedule's name; a zero-bubble schedule runs backward twice, which recomputation does not survive."""
    options = spec.options.batch
    if options.pipeline_schedule == "zero-bubble" and options.recompute:
        if world.is_main:
            _logger.warning("--recompute does not work with the zero-bubble schedule: using interleaved-1f1b")
        return "interleaved-1f1b"
    return options.pipeline_schedule


def together(stages: Sequence[nn.Module]) -> nn.Module:
    """One module with the layers of several stages under their full names, for its state, its modes, its parameters.

    A stage has empty containers on the way to its layers; two stages may both have a `layer1`, which are merged.
    """
    whole = nn.Module()
    for stage in stages:
        _merge(whole, stage)
    return whole


def refuse_shared(stages: Sequence[nn.Module], parts: Sequence[Part]) -> None:
    """A parameter has one owner: its gradient would be a sum over parts that only know their own share of it.

    Parts of one worker too: each ends its groups by itself, and sums gradients of its own.
    """
    workers = sorted({part.worker for part in parts})
    of_workers = [[n for part in parts if part.worker == one for n in part.stages] for one in workers]
    for held, where in ((of_workers, "of different workers"), ([part.stages for part in parts], "that run apart")):
        shared = shared_parameters([together([stages[n] for n in numbers]) for numbers in held])
        if shared:
            raise UserError(
                f"the parameter {shared[0]} is used in stages {where}: choose --splits that keep all its uses in one "
                "stage, or a --layout of depth 1"
            )


def _merge(target: nn.Module, source: nn.Module) -> None:
    for name, parameter in source.named_parameters(recurse=False):
        target.register_parameter(name, parameter)
    saved = source.state_dict().keys()
    for name, buffer in source.named_buffers(recurse=False):
        target.register_buffer(name, buffer, persistent=name in saved)
    for name, child in source.named_children():
        if type(child) is nn.Module:
            if name not in dict(target.named_children()):
                target.add_module(name, nn.Module())
            _merge(target.get_submodule(name), child)
        else:
            target.add_module(name, child)


class StageLane:
    """Slot gradients of this worker's stages. The first stage reads the data, the last one sees logits and labels."""

    def __init__(self, work: LaneWork, model: nn.Module) -> None:
        spec, world = work.spec, work.world
        options, topology = spec.options, spec.topology
        group, schedule = world.stage_group, _schedule(spec, world)
        stages, parts = cut_for(
            spec, model, assign(topology.stages, world.depth, schedule, options.batch.device_mapping)
        )
        refuse_shared(stages, parts)
        self.pipeline = Pipeline(
            stages,
            parts,
            worker=world.stage,
            depth=world.depth,
            schedule=schedule,
            group=group,
            device=world.device,
            on_forward=self._end_forward,
            on_backward=self._end_backward,
            on_last_backward=lambda: self._sum.start(),
        )
        # Each part of this worker ends its groups by itself, so its gradients and statistics are a section of their own.
        sections = [together([stages[number] for number in parts[index].stages]) for index in self.pipeline.mine]
        self.module = together(sections)
        self.pipeline.release_others()
        self._dealt = spec.dealt(world.lanes)
        self._groups = self._dealt.passes_of(world.lane)
        self._first_group = self._dealt.lanes[world.lane].start
        self._sum = world.gradient_sum(
            [list(section.parameters()) for section in sections], size_in_bytes(options.layout.bucket_size), self._dealt
        )
        self._statistics = [StatisticsSum(norms.batch_norms(one), self._dealt) for one in sections]
        self._norm_batches = max(1, self._dealt.group_slots // options.model.bn_span)
        self._topology, self._loss, self._prepare, self._timing = topology, work.loss, work.prepare, work.timing
        self._teacher = work.teacher
        self._seed, self._metrics = options.run.seed, not options.events.disable_metrics
        self._updates_per_epoch = spec.length.updates_per_epoch
        self._group, self._world = group, world
        self._sent: list[tuple[Tensor, Any]] = []
        self._targets: dict[int, Target] = {}
        self.recent: list[Batch] = []
        """The batches of the last update in the order of their use, on the first stage's worker."""

    @property
    def reads_data(self) -> bool:
        """Whether this worker needs the images."""
        return self.pipeline.holds_first

    @property
    def tallies(self) -> bool:
        """Whether this worker sees the labels."""
        return self.pipeline.holds_last

    def _end_forward(self, part: int, number: int) -> None:
        self._timing.passed("forward")
        self._statistics[self.pipeline.mine.index(part)].leaf(self._first_group + number)

    def _end_backward(self, part: int, number: int) -> None:
        self._timing.passed("backward")
        self._sum.leaf(self._first_group + number, self.pipeline.mine.index(part))

    def gradients(self, batches: Iterator[Batch], update: int, loss_scale: float) -> Tensor:
        """See `Lane.gradients`; the table is filled by the worker with the last stage."""
        table = torch.zeros(self._dealt.groups, TALLY, dtype=torch.float64, device=self._world.device)
        groups = self._groups
        self.recent = []
        self.pipeline.drain()
        started, before = time.perf_counter(), {**timeline.here.seconds, "data": self._timing.seconds["data"]}

        def fetch(number: int) -> Tensor:
            begun = time.perf_counter()
            parts = [next(batches) for _ in groups[number]]
            self.recent.extend(parts)
            images, target = joined_inputs(self._prepare, parts, self._teacher)
            self._send_target(number, target)
            self._timing.add("data", time.perf_counter() - begun)
            self._timing.passed("data")
            return images

        def loss(logits: Tensor, number: int) -> Tensor:
            target = self._receive_target(number)
            value = self._loss(logits, target)
            count = len(groups[number])
            table[self._first_group + number] = tally(value, logits, target.labels, slots=count, accuracy=self._metrics)
            return value * (loss_scale * count / self._topology.slots)

        def context(number: int) -> AbstractContextManager[None]:
            self._timing.passed("wait")
            return keyed(self._seed, update, groups[number], norm_batches=self._norm_batches)

        self._timing.begin()
        epoch = update // self._updates_per_epoch
        size = self._prepare.size(epoch, True)
        rows = self._topology.micro_batch * self._dealt.group_slots
        self.pipeline.run(
            len(groups),
            (rows, self._prepare.channels, size, size),
            self._prepare.dtype,
            fetch,
            loss,
            context,
        )
        self._share_out(time.perf_counter() - started, before)
        self._wait_for_labels()
        self._sum.finish()
        for statistics in self._statistics:
            statistics.give(self._world.sum_parts(statistics.parts(), self._dealt))
        self._timing.mark("reduce")
        return table

    def _share_out(self, whole: float, before: Mapping[str, float]) -> None:
        """The time of a pipeline's passes by phase; what no phase has claimed was waiting for the neighbours."""
        passes = {
            phase: timeline.here.seconds.get(phase, 0.0) - before.get(phase, 0.0) for phase in ("forward", "backward")
        }
        fetching = self._timing.seconds["data"] - before["data"]
        self._timing.add("forward", passes["forward"] - fetching)  # the first stage takes its images inside its pass
        self._timing.add("backward", passes["backward"])
        self._timing.add("wait", max(0.0, whole - passes["forward"] - passes["backward"]))

    def close(self) -> None:
        """See `Lane.close`."""
        self._sum.close()

    def find_bad_layer(self, update: int, loss_scale: float) -> finite.Finding | None:
        """What is not finite first in this worker's stages when the last update is repeated; all workers call this."""
        pieces = [(stage, index) for index in self.pipeline.mine for stage in self.pipeline.stage_modules[index].stages]
        batches = iter(self.recent)
        return finite.first_bad_layer(
            [stage for stage, _ in pieces],
            lambda: self.gradients(batches, update, loss_scale),
            [index for _, index in pieces],
        )

    def logits(self, images: Tensor) -> Tensor:
        """Forward through the lane; every worker of it must call this, and the one with the last stage gets logits.

        `images` counts on the first stage's worker; on the others only its shape does.
        """
        result = self.pipeline.forward(images if self.reads_data else None, images.shape, images.dtype)
        return result if result is not None else images.new_zeros((0, 0))

    def _send_target(self, number: int, target: Target) -> None:
        """Labels go straight from the first stage's worker to the last one's, from host to host.

        Only a teacher's logits come from the device, for which the host waits here.
        """
        if self.pipeline.holds_last:
            self._targets[number] = target
            return
        peer = self.pipeline.peer(len(self.pipeline.parts) - 1)
        terms = target.mixed or []
        taught = () if target.teacher is None else target.teacher.unbind(1)
        rows = [row for part in (target.labels, *(one for term in terms for one in term)) for row in _columns(part)]
        rows += taught
        width = 0 if target.labels.dim() == 1 else target.labels.shape[1]
        # float64 holds every label, every float32 weight and every float32 logit exactly.
        table = torch.stack([row.to("cpu", torch.float64) for row in rows])
        for message in (torch.tensor([*table.shape, len(taught), width]), table):
            self._sent.append((message, dist.isend(message, peer, group=self._group, tag=LABELS)))

    def _receive_target(self, number: int) -> Target:
        if self.pipeline.holds_first:
            return self._targets.pop(number).copied(self._prepare.copy)
        peer = self.pipeline.peer(0)
        shape = torch.zeros(4, dtype=torch.int64)
        dist.recv(shape, peer, group=self._group, tag=LABELS)
        height, length, taught, width = shape.tolist()
        table = torch.empty(height, length, dtype=torch.float64)
        dist.recv(table, peer, group=self._group, tag=LABELS)
        table = self._prepare.copy(table)
        several = bool(width)  # 0: the labels are one row
        width = max(1, width)

        def labels(first: int) -> Tensor:
            return (table[first : first + width].T if several else table[first]).long().contiguous()

        mixed = [(labels(i), table[i + width].float()) for i in range(width, height - taught, width + 1)]
        teacher = table[height - taught :].T.float() if taught else None
        return Target(labels(0), mixed or None, teacher)

    def _wait_for_labels(self) -> None:
        for _, work in self._sent:
            work.wait()
        self._sent.clear()


def _columns(part: Tensor) -> Sequence[Tensor]:
    return [part] if part.dim() == 1 else part.unbind(1)


class Relay(nn.Module):
    """The lane's stages as one network for validation: logits where the last stage is, nothing elsewhere."""

    def __init__(self, lane: StageLane) -> None:
        super().__init__()
        self.module = lane.module
        self._logits = lane.logits

    def forward(self, images: Tensor) -> Tensor:
        """Every worker of the lane calls this with a batch of the same shape."""
        return self._logits(images)
