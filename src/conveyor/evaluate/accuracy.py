"""Accuracy over a whole validation set: every image counted once, padding masked, whatever the batch and the layout."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from conveyor.data.batch import Batch, Target
from conveyor.errors import UserError
from conveyor.evaluate import calibration
from conveyor.evaluate.answers import AllAnswers
from conveyor.evaluate.multi_label import MultiLabel, measured
from conveyor.measure.latency import Latency
from conveyor.models.clone import evaluating
from conveyor.numerics import finite
from conveyor.training.loss import LOSS, SAMPLES, TALLY, TOP1, TOP5, Loss, tally
from conveyor.training.meter import wait_for
from conveyor.world.world import World

CONFUSION_CLASSES = 200
"""Up to this many classes the confusion counts are kept (C^2 numbers)."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The result of one validation; percentages, exact counts."""

    top1: float
    top5: float
    images: int
    loss: float
    seconds: float
    latencies: tuple[float, ...] = ()
    """Seconds of each forward pass with its transfer, when asked for."""
    confusion: Tensor | None = field(default=None, compare=False)
    """int64 [C, C]: images by (label, answer)."""
    calibration: Tensor | None = field(default=None, compare=False)
    """int64 [bins, 3], see `calibration.counted`."""
    per_class: Tensor | None = field(default=None, compare=False)
    """int64 [3, C]: images of each class, answers that name it, and right ones."""
    multi_label: MultiLabel | None = field(default=None, compare=False)
    """Of images with several classes; `top1` is then the share whose surest class is one of theirs."""

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """See `MultiLabel`."""
        return None if self.multi_label is None else self.multi_label.thresholds

    @property
    def is_finite(self) -> bool:
        """Whether the loss is finite; otherwise the figures would read as an accuracy of 0 %."""
        return math.isfinite(self.loss)

    @property
    def _has_top5(self) -> bool:
        return self.multi_label is None and (self.confusion is None or len(self.confusion) > 5)

    def record(self, name: str, update: int, epoch: float) -> dict[str, Any]:
        """The fields of `monitor.records` for a validation."""
        record: dict[str, Any] = {
            "name": name,
            "update": update,
            "epoch": epoch,
            "accuracy": self.top1,
            **({"accuracy_top5": self.top5} if self._has_top5 else {}),
            **({} if self.multi_label is None else self.multi_label.scores()),
            "loss": self.loss,
            **({} if self.per_class is None else macro_scores(self.per_class)),
            **(
                {}
                if self.calibration is None
                else {"ece": 100 * calibration.expected_calibration_error(self.calibration)}
            ),
            "images": self.images,
            "seconds": self.seconds,
            "images_per_second": self.images / self.seconds if self.seconds > 0 else 0.0,
        }
        if self.latencies:
            record |= Latency.of(self.latencies).fields()
        return record


def macro_scores(per_class: Tensor) -> dict[str, float]:
    """Means over the classes that have images, in percent: precision = right / answers (0 without any), recall = right /
    images, F1 = 2 right / (answers + images)."""
    images, answers, right = (row[per_class[0] > 0].double() for row in per_class)
    scores = {"precision": right / answers.clamp(min=1), "recall": right / images, "f1": 2 * right / (answers + images)}
    return {name: 100 * float(values.mean()) if len(values) else 0.0 for name, values in scores.items()}


def check_answers(found: Accuracy, model: nn.Module, name: str) -> None:
    """Refuse the figures of a stored model whose answers are not finite."""
    if found.is_finite:
        return
    bad = finite.bad_weight([*model.named_parameters(), *model.named_buffers()])
    cause = f"its {bad} holds values that are not" if bad is not None else "though all of its weights are"
    raise UserError(f"{name} gives answers that are not finite ({cause}): validate an earlier checkpoint")


def validate(
    model: nn.Module,
    feed: Iterable[Batch],
    prepare: Callable[[Batch, bool], tuple[Tensor, Target]],
    world: World,
    *,
    num_batches: int,
    num_classes: int,
    latency: bool = False,
    on_batch: Callable[[Batch, Tensor], None] | None = None,
    answers: AllAnswers | None = None,
) -> Accuracy:
    """Run `feed` (this worker's share of `num_batches`) through `model` in evaluation mode and sum over all workers.

    `on_batch(batch, logits)` sees each batch's valid part, to collect mistakes; `answers` gets those of all workers, and
    with several labels for each image the figures follow from them.
    """
    several = answers is not None and answers.labels.dim() == 2
    # One row for each batch of the whole set: the sum does not depend on which worker counted which batch.
    totals = torch.zeros(num_batches, TALLY, dtype=torch.float64, device=world.device)
    confusion = torch.zeros(
        num_classes**2 if num_classes <= CONFUSION_CLASSES and not several else 0,
        dtype=torch.int64,
        device=world.device,
    )
    confident = torch.zeros(calibration.BINS, 3, dtype=torch.int64, device=world.device)
    per_class = torch.zeros(3, num_classes, dtype=torch.int64, device=world.device)
    criterion, latencies = Loss(kind="bce" if several else "cross-entropy"), []
    started = time.perf_counter()
    with evaluating(model):
        for batch in feed:
            begun = time.perf_counter()
            # Not around the whole loop: the feed makes its buffers inside next(), and other threads write to them.
            with torch.inference_mode():
                images, target = prepare(batch, False)
                logits = model(images)[: batch.num_valid].float()
            if latency:
                wait_for(logits.device)
                latencies.append(time.perf_counter() - begun)
            if batch.num_valid == 0 or logits.shape[0] < batch.num_valid:
                # Nothing valid, or another worker of this lane has the last stage.
                continue
            labels = target.labels[: batch.num_valid].to(logits.device, non_blocking=True)
            totals[batch.slot] = tally(criterion(logits, Target(labels)), logits, labels)
            if confusion.numel():
                pairs = torch.bincount(labels * num_classes + logits.argmax(dim=1), minlength=num_classes**2)
                confusion += pairs.to(confusion.device)
            if not several:
                confidence, answer = logits.softmax(dim=1).max(dim=1)
                confident += calibration.counted(confidence, answer == labels).to(confident.device)
                for row, chosen in enumerate((labels, answer, answer[answer == labels])):
                    per_class[row] += torch.bincount(chosen, minlength=num_classes).to(per_class.device)
            if answers is not None:
                answers.see(batch, logits)
            if on_batch is not None:
                on_batch(batch, logits)
    world.sum_over_all([totals, confusion, confident, per_class])
    if answers is not None:
        answers.gather(world)
    found = measured(answers.logits, answers.labels) if several and answers is not None else None
    sums = totals.sum(0).tolist()
    images_seen = round(sums[SAMPLES])
    share = 100.0 / max(1, images_seen)
    return Accuracy(
        top1=sums[TOP1] * share,
        top5=sums[TOP5] * share,
        images=images_seen,
        loss=sums[LOSS] / max(1, images_seen),
        seconds=time.perf_counter() - started,
        latencies=tuple(latencies),
        confusion=confusion.view(num_classes, num_classes).cpu() if confusion.numel() else None,
        calibration=None if several else confident.cpu(),
        per_class=per_class.cpu() if found is None else found.counts,
        multi_label=found,
    )
