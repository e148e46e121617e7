"""Which classes are confused, the most confident wrong answers, and some right ones."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from conveyor.data.batch import Batch
from conveyor.files import write_atomically

KEPT = 24
"""Mistakes of one validation that are shown."""
KEPT_RIGHT = 4
"""Right answers that are shown."""


class Answer(NamedTuple):
    """One image of the validation set, its label and the network's answer."""

    confidence: float
    sample: int
    label: int
    predicted: int


class Answers:
    """The most confident wrong answers of one validation, and the first right ones of different classes."""

    def __init__(self, found: Iterable[Sequence[Any]] = ()) -> None:
        self._wrong: list[Answer] = []
        self._right: dict[int, Answer] = {}
        self._add([Answer(*one) for one in found])

    @property
    def wrong(self) -> list[Answer]:
        """Most confident first."""
        return self._wrong

    @property
    def right(self) -> list[Answer]:
        """In the order of the set."""
        return sorted(self._right.values(), key=lambda one: one.sample)

    def see(self, batch: Batch, logits: Tensor) -> None:
        """Collect from the valid part of a batch."""
        labels = batch.labels[: batch.num_valid].cpu()
        if labels.dim() == 2:
            return  # of several labels some may be right
        confidence, answer = (one.cpu() for one in logits.softmax(dim=1).max(dim=1))
        wrong = answer != labels
        looked_at = wrong.nonzero().flatten().tolist()
        if len(self._right) < KEPT_RIGHT:
            looked_at += (~wrong).nonzero().flatten().tolist()
        self._add(
            [
                Answer(float(confidence[at]), int(batch.samples[at]), int(labels[at]), int(answer[at]))
                for at in looked_at
            ]
        )

    def _add(self, found: list[Answer]) -> None:
        for one in sorted(found, key=lambda one: one.sample):
            if one.label != one.predicted:
                self._wrong.append(one)
            elif one.label not in self._right or one.sample < self._right[one.label].sample:
                self._right[one.label] = one
        self._wrong.sort(key=lambda one: (-one.confidence, one.sample))
        del self._wrong[KEPT:]
        self._right = {one.label: one for one in self.right[:KEPT_RIGHT]}

    def listed(self) -> list[list[Any]]:
        """As JSON-like values, from which those of several workers are put together: the same however the set was dealt."""
        return [list(one) for one in (*self._wrong, *self.right)]


def write_confusion(folder: Path, confusion: Tensor, class_names: tuple[str, ...], update: int) -> None:
    """`confusion.json` of the weights after `update`: rows are true classes, columns answers; of many without zeros."""
    classes = list(class_names) or [str(number) for number in range(len(confusion))]
    document: dict[str, Any] = {"classes": classes, "update": update}
    if len(confusion) <= 32:
        document["matrix"] = confusion.tolist()
    else:
        document["counts"] = [
            [row, column, int(confusion[row, column])] for row, column in confusion.nonzero().tolist()
        ]
    write_atomically(folder / "confusion.json", json.dumps(document))
