"""A folded lane: this worker holds the whole model and runs its slots one after the other."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from conveyor.data.batch import Batch, Target
from conveyor.data.prepare import Prepare
from conveyor.models import stochastic
from conveyor.numerics import finite
from conveyor.training.loss import Loss, tally
from conveyor.training.meter import Timing
from conveyor.training.passes import slots_of_passes
from conveyor.training.world import GradientReducer


class FoldedLane:
    """Slot gradients of the whole model. A batch-norm span that lies in this lane is one pass, or several spans are."""

    reads_data = True

    def __init__(
        self,
        module: nn.Module,
        slots: Sequence[int],
        *,
        total_slots: int,
        span: int,
        spans_per_pass: int = 1,
        loss: Loss,
        prepare: Prepare,
        reducer: GradientReducer,
        timing: Timing,
        seed: int,
        metrics: bool = True,
    ) -> None:
        self.module = module
        self._groups = slots_of_passes(slots, span, spans_per_pass)
        self._span = span
        self._total_slots = total_slots
        self._loss, self._prepare, self._reducer, self._timing = loss, prepare, reducer, timing
        self._seed, self._metrics = seed, metrics
        self.recent: list[list[Batch]] = []
        """The batches of the last update, for the search for a bad layer."""

    def gradients(self, batches: Iterator[Batch], update: int, loss_scale: float) -> Tensor:
        """See `Lane.gradients`: p.grad = sum over the lane's slots of d(loss_scale / slots x loss)."""
        total = torch.zeros(5, dtype=torch.float64, device=self._prepare.device)
        self.recent = []
        self._timing.begin()
        for number, group in enumerate(self._groups):
            parts = [next(batches) for _ in group]
            self.recent.append(parts)
            images, target = joined_inputs(self._prepare, parts)
            self._timing.mark("data")
            with self._keyed(update, group):
                logits = self.module(images)
                loss = self._loss(logits, target)
                self._timing.mark("forward")
                if number == len(self._groups) - 1:
                    self._reducer.start()
                (loss * (loss_scale * len(group) / self._total_slots)).backward()
            total += tally(loss, logits, target.labels, slots=len(group), accuracy=self._metrics)
            self._timing.mark("backward")
        self._reducer.finish()
        self._timing.mark("reduce")
        return total

    def find_bad_layer(self, update: int, loss_scale: float) -> finite.Finding | None:
        """What is not finite first when the passes of the last update are repeated."""
        found: list[finite.Finding] = []
        for group, parts in zip(self._groups, self.recent, strict=False):
            images, target = joined_inputs(self._prepare, parts)
            factor = loss_scale * len(group) / self._total_slots

            def repeat(images: Tensor = images, target: Target = target, factor: float = factor) -> None:
                (self._loss(self.module(images), target) * factor).backward()

            with self._keyed(update, group):
                first = finite.first_bad_layer([self.module], repeat)
            found += [first] if first is not None else []
        return min(found, default=None)

    def _keyed(self, update: int, group: tuple[int, ...]) -> AbstractContextManager[None]:
        return stochastic.keyed(self._seed, update, group, norm_batches=max(1, len(group) // self._span))


def joined_inputs(prepare: Prepare, parts: Sequence[Batch]) -> tuple[Tensor, Target]:
    """The prepared images and targets of one forward pass: one slot, or several slots one behind the other."""
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
        target.mixed or [(target.labels, torch.ones_like(target.labels, dtype=torch.float32))] for target in targets
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
