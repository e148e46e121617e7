"""How good a multi-label model is, and the thresholds from which on it names a class.

Everything follows from all logits and labels at once, in the order of the data set, so that no layout changes it.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from conveyor.files import write_atomically

_AT_ONCE = 1 << 23
"""Logits that are looked at at a time: a dozen tables of 8 bytes for each are made of them, and classes do not depend on each other."""
USUAL = 0.5
"""The threshold of a class without images."""


@dataclass(frozen=True, slots=True)
class MultiLabel:
    """Figures of each class; a class is named where its probability is at least its threshold."""

    thresholds: tuple[float, ...]
    average_precision: tuple[float | None, ...]
    """0..1; none for a class without images."""
    counts: Tensor
    """int64 [3, C]: images of each class, answers that name it at its threshold, and right ones."""

    def scores(self) -> dict[str, float]:
        """In percent: the mean of the average precisions, and F1 = 2 right / (answers + images) over all classes."""
        known = [value for value in self.average_precision if value is not None]
        images, answers, right = self.counts.sum(dim=1).tolist()
        return {
            "map": 100 * math.fsum(known) / max(1, len(known)),
            "f1_micro": 200 * right / max(1, answers + images),
        }

    def write(self, folder: Path, class_names: Sequence[str], update: int) -> None:
        """`labels.json` of the weights after `update`, for the report."""
        classes = list(class_names) or [str(number) for number in range(len(self.thresholds))]
        document = {
            "classes": classes,
            "update": update,
            "thresholds": self.thresholds,
            "average_precision": self.average_precision,
            "counts": self.counts.T.tolist(),
        }
        write_atomically(folder / "labels.json", json.dumps(document))


def measured(logits: Tensor, labels: Tensor) -> MultiLabel:
    """From logits [N, C] and labels [N, C] of 0 and 1.

    Images of equal logits are named together, so only the last of them is a place k where a threshold can be:
    average precision = mean over the images of the class of right_k / k at the next such place (sum of precision times the
    step of recall); the threshold lies halfway between the logits of place k and the next one, k with the largest
    F1_k = 2 right_k / (k + images), the first of several.
    """
    logits, labels = logits.cpu(), labels.cpu()
    step = max(1, _AT_ONCE // max(1, len(logits)))
    parts = [
        _measured(*(one[:, first : first + step] for one in (logits, labels)))
        for first in range(0, logits.shape[1], step)
    ]
    return MultiLabel(
        tuple(value for part in parts for value in part.thresholds),
        tuple(value for part in parts for value in part.average_precision),
        torch.cat([part.counts for part in parts], dim=1),
    )


def _measured(logits: Tensor, labels: Tensor) -> MultiLabel:
    """`measured` of some classes."""
    count = len(logits)
    ordered, order = logits.sort(dim=0, descending=True, stable=True)
    present = labels.gather(0, order)
    right, images = present.cumsum(0), labels.sum(0)
    numbers = torch.arange(1, count + 1).unsqueeze(1)
    last = torch.cat([ordered[:-1] > ordered[1:], torch.ones_like(ordered[:1], dtype=torch.bool)])
    ends = torch.where(last, numbers - 1, count).flip(0).cummin(0).values.flip(0)
    precision = (right.double() / numbers).gather(0, ends)
    # A running sum: a plain one is cut into parts by the number of threads.
    average = (precision * present).cumsum(0)[-1] / images
    best = (2 * right.double() / (numbers + images)).masked_fill(~last, -1.0).argmax(dim=0)
    next_lower = torch.cat([ordered[1:], ordered[-1:] - 2]).double()
    middle = (ordered.double() + next_lower).gather(0, best.unsqueeze(0))[0] / 2
    none = images == 0
    answers = torch.where(none, (logits >= 0).sum(0), best + 1)
    counts = torch.stack([images, answers, right.gather(0, best.unsqueeze(0))[0]])
    return MultiLabel(
        tuple(USUAL if empty else _sigmoid(value) for empty, value in zip(none.tolist(), middle.tolist(), strict=True)),
        tuple(None if empty else value for empty, value in zip(none.tolist(), average.tolist(), strict=True)),
        counts,
    )


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
