"""A lane of depth 1: this worker holds the whole model and runs the lane's groups of slots one after the other."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

import torch
from torch import Tensor, nn

from conveyor.data.batch import Batch, Target
from conveyor.data.transform.prepare import Prepare
from conveyor.models.layers import norms
from conveyor.numerics import finite
from conveyor.numerics.context import keyed
from conveyor.options.units import size_in_bytes
from conveyor.spec import RunSpec
from conveyor.training.loss import TALLY, Loss, tally
from conveyor.training.meter import Timing
from conveyor.world.norm_statistics import StatisticsSum
from conveyor.world.world import World

Teacher: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A teacher's logits, float32 [B, C], for prepared images [B, C, H, W] of these samples [B]."""


@dataclasses.dataclass(frozen=True, slots=True)
class LaneWork:
    """What a lane computes: the run, on which workers, from which images, towards which loss."""

    spec: RunSpec
    world: World
    prepare: Prepare
    timing: Timing
    loss: Loss
    teacher: Teacher | None = None


class WholeModelLane:
    """Gradients of the whole model, one group of slots after the other."""

    reads_data = tallies = True

    def __init__(self, work: LaneWork, model: nn.Module) -> None:
        world, options, dealt = work.world, work.spec.options, work.spec.dealt(work.world.lanes)
        self.module = model
        self._world, self._dealt, self._span = world, dealt, options.model.bn_span
        self._passes = list(zip(dealt.lanes[world.lane], dealt.passes_of(world.lane), strict=True))
        self._sum = world.gradient_sum([list(model.parameters())], size_in_bytes(options.layout.bucket_size), dealt)
        self._statistics = StatisticsSum(norms.batch_norms(model), dealt)
        self._loss, self._prepare, self._timing, self._teacher = work.loss, work.prepare, work.timing, work.teacher
        self._seed, self._metrics = options.run.seed, not options.events.disable_metrics
        self.recent: list[list[Batch]] = []
        """The batches of the last update, for the search for a bad layer."""

    def gradients(self, batches: Iterator[Batch], update: int, loss_scale: float) -> Tensor:
        """See `Lane.gradients`: p.grad = sum over the groups of d(loss_scale x slots of the group / all slots x loss)."""
        table = torch.zeros(self._dealt.groups, TALLY, dtype=torch.float64, device=self._prepare.device)
        self.recent = []
        self._timing.begin()
        for number, slots in self._passes:
            last = number == self._passes[-1][0]
            parts = [next(batches) for _ in slots]
            self.recent.append(parts)
            images, target = self._inputs(parts)
            self._timing.mark("data")
            with self._keyed(update, slots):
                logits = self.module(images)
                loss = self._loss(logits, target)
                self._statistics.leaf(number)
                self._timing.mark("forward")
                if last:
                    self._sum.start()
                (loss * self._factor(loss_scale, slots)).backward()
            self._sum.leaf(number)
            table[number] = tally(loss, logits, target.labels, slots=len(slots), accuracy=self._metrics)
            self._timing.mark("backward")
        self._sum.finish()
        self._statistics.give(self._world.sum_parts(self._statistics.parts(), self._dealt))
        self._timing.mark("reduce")
        return table

    def close(self) -> None:
        """See `Lane.close`."""
        self._sum.close()

    def find_bad_layer(self, update: int, loss_scale: float) -> finite.Finding | None:
        """What is not finite first when the passes of the last update are repeated."""
        found: list[finite.Finding] = []
        for (_, slots), parts in zip(self._passes, self.recent, strict=False):
            images, target = self._inputs(parts)
            factor = self._factor(loss_scale, slots)

            def repeat(images: Tensor = images, target: Target = target, factor: float = factor) -> None:
                (self._loss(self.module(images), target) * factor).backward()

            with self._keyed(update, slots):
                first = finite.first_bad_layer([self.module], repeat)
            found += [first] if first is not None else []
        return min(found, default=None)

    def _inputs(self, parts: Sequence[Batch]) -> tuple[Tensor, Target]:
        images, target = joined_inputs(self._prepare, parts, self._teacher)
        return images, target.copied(self._prepare.copy)

    def _factor(self, loss_scale: float, slots: tuple[int, ...]) -> float:
        return loss_scale * len(slots) / self._dealt.slots

    def _keyed(self, update: int, slots: tuple[int, ...]) -> AbstractContextManager[None]:
        return keyed(self._seed, update, slots, norm_batches=max(1, len(slots) // self._span))


def joined_inputs(prepare: Prepare, parts: Sequence[Batch], teacher: Teacher | None = None) -> tuple[Tensor, Target]:
    """The prepared images, and the targets on the host, of one forward pass: one slot, or several one behind the other.

    A teacher's logits stay on the device.
    """
    images, target = _joined(prepare, parts)
    if teacher is not None:
        target = dataclasses.replace(target, teacher=teacher(images, torch.cat([batch.samples for batch in parts])))
    return images, target


def _joined(prepare: Prepare, parts: Sequence[Batch]) -> tuple[Tensor, Target]:
    prepared = [prepare(batch, True) for batch in parts]
    if len(prepared) == 1:
        return prepared[0]
    images = torch.cat([images for images, _ in prepared]).contiguous(memory_format=torch.channels_last)
    labels = torch.cat([target.labels for _, target in prepared])
    terms = [target.mixed for _, target in prepared]
    if all(term is None for term in terms):
        return images, Target(labels)
    return images, Target(labels, _joined_terms([target for _, target in prepared]))


def _joined_terms(targets: list[Target]) -> list[tuple[Tensor, Tensor]]:
    """Label terms of several batches as those of one; a batch with fewer terms gets terms of weight 0."""
    lists = [
        target.mixed or [(target.labels, torch.ones(len(target.labels), device=target.labels.device))]
        for target in targets
    ]
    longest = max(len(terms) for terms in lists)
    padded = [
        terms + [(target.labels, torch.zeros_like(terms[0][1]))] * (longest - len(terms))
        for terms, target in zip(lists, targets, strict=True)
    ]
    return [
        (torch.cat([terms[i][0] for terms in padded]), torch.cat([terms[i][1] for terms in padded]))
        for i in range(longest)
    ]
