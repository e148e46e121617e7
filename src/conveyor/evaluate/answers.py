"""The answer to every validation image as a CSV or parquet file."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from conveyor.data.batch import Batch, Dataset
from conveyor.errors import UserError, needed
from conveyor.files import make_parent, open_replacing
from conveyor.monitor.csvfile import csv_text
from conveyor.world.world import World

SUFFIXES = (".csv", ".parquet")
FOR_PARQUET = ("--answers FILE.parquet (not FILE.csv)", "parquet")
_AT_ONCE = 1 << 24
"""Probabilities, of 8 bytes, that are made at a time: 50,000 images of 21,000 classes have a thousand million."""


class AllAnswers:
    """Logits [N, C] and labels [N], or [N, C] of several for each image, of one validation, in the order of the data set."""

    def __init__(self, images: int, num_classes: int, device: torch.device, *, multi_label: bool = False) -> None:
        self.logits = torch.zeros(images, num_classes, device=device)
        self.labels = torch.zeros(images, *([num_classes] if multi_label else []), dtype=torch.int64, device=device)

    def see(self, batch: Batch, logits: Tensor) -> None:
        """Keep the valid part of a batch."""
        rows = batch.samples[: batch.num_valid].to(self.labels.device)
        self.logits[rows] = logits.to(self.logits.device)
        self.labels[rows] = batch.labels[: batch.num_valid].to(self.labels.device)

    def gather(self, world: World) -> None:
        """The rows of all workers: each was seen by one, so the sums are exact."""
        world.sum_over_all([self.logits, self.labels])


def check_target(path: str) -> None:
    """Refuse a file whose ending does not say its form, before anything is computed."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise UserError(f"--answers {path}: its name must end in .csv or .parquet")
    if Path(path).suffix.lower() == ".parquet":
        needed("pyarrow.parquet", *FOR_PARQUET)


def write_answers(path: Path, answers: AllAnswers, dataset: Dataset, thresholds: Sequence[float] | None = None) -> None:
    """A row for each image: path, label, answer, its confidence (softmax), the label's own, whether it is right, the second.

    A parquet file also has all probabilities, in the order of the classes. With several labels for each image (`thresholds`):
    path, labels, answers (those above their thresholds) and whether they are the same.
    """
    name = getattr(dataset, "key", lambda index: f"validation/{index}")
    classes = dataset.class_names or [str(number) for number in range(answers.logits.shape[1])]
    step = max(1, _AT_ONCE // len(classes))
    parts = (
        _rows(range(first, min(first + step, len(answers.labels))), answers, name, classes, thresholds)
        for first in range(0, len(answers.labels), step)
    )
    make_parent(path)
    with open_replacing(path) as file:
        if path.suffix.lower() == ".csv":
            _write_csv(file, parts)
        else:
            _write_parquet(file, parts, classes)


def _rows(
    images: range,
    answers: AllAnswers,
    name: Callable[[int], str],
    classes: Sequence[str],
    thresholds: Sequence[float] | None,
) -> tuple[list[dict[str, Any]], Tensor]:
    """The rows of these images, and the probabilities of all classes, float64 [n, C]."""
    logits, labels = (one[images.start : images.stop].cpu() for one in (answers.logits, answers.labels))
    if thresholds is not None:
        probabilities = logits.double().sigmoid()
        named = (probabilities >= torch.tensor(thresholds, dtype=torch.float64)).long()
        several = [[";".join(classes[c] for c in row.nonzero().flatten()) for row in part] for part in (labels, named)]
        return [
            {"path": name(index), "labels": own, "answers": answer, "right": int(own == answer)}
            for index, own, answer in zip(images, *several, strict=True)
        ], probabilities
    probabilities = logits.double().softmax(dim=1)
    best = probabilities.topk(min(2, probabilities.shape[1]), dim=1)
    own = probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)
    columns = (labels.tolist(), best.indices.tolist(), best.values[:, 0].tolist(), own.tolist())
    return [
        {
            "path": name(index),
            "label": classes[label],
            "answer": classes[first[0]],
            "confidence": confidence,
            "label_confidence": label_confidence,
            "right": int(first[0] == label),
            "second": classes[first[-1]],
        }
        for index, label, first, confidence, label_confidence in zip(images, *columns, strict=True)
    ], probabilities


def _write_csv(file: BinaryIO, parts: Iterable[tuple[list[dict[str, Any]], Tensor]]) -> None:
    for number, (rows, _) in enumerate(parts):
        head = [] if number else [list(rows[0])]
        file.write(csv_text([*head, *(list(row.values()) for row in rows)]).encode(errors="surrogateescape"))


def _write_parquet(
    file: BinaryIO, parts: Iterable[tuple[list[dict[str, Any]], Tensor]], classes: Sequence[str]
) -> None:
    pyarrow, parquet = (needed(module, *FOR_PARQUET) for module in ("pyarrow", "pyarrow.parquet"))
    with contextlib.ExitStack() as stack:
        writer = None
        for rows, probabilities in parts:
            table = pyarrow.Table.from_pylist(rows)
            table = table.append_column("probabilities", pyarrow.array(list(probabilities.float().numpy())))
            table = table.replace_schema_metadata({"classes": "\n".join(classes)})
            writer = writer or stack.enter_context(parquet.ParquetWriter(file, table.schema))
            writer.write_table(table)
