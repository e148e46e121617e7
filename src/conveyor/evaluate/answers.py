"""The answer to every validation image as a CSV or parquet file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conveyor.data.batch import Batch, Dataset
from conveyor.errors import UserError
from conveyor.files import make_parent, write_atomically
from conveyor.monitor.csvfile import csv_text
from conveyor.world.world import World

SUFFIXES = (".csv", ".parquet")


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
        _pyarrow()


def write_answers(path: Path, answers: AllAnswers, dataset: Dataset, thresholds: Sequence[float] | None = None) -> None:
    """A row for each image: path, label, answer, its confidence (softmax), the label's own, whether it is right, the second.

    A parquet file also has all probabilities, in the order of the classes. With several labels for each image (`thresholds`):
    path, labels, answers (those above their thresholds) and whether they are the same.
    """
    name = getattr(dataset, "key", lambda index: f"validation/{index}")
    classes = dataset.class_names or [str(number) for number in range(answers.logits.shape[1])]
    logits, labels = answers.logits.cpu().double(), answers.labels.cpu()
    if thresholds is not None:
        probabilities = logits.sigmoid()
        named = (probabilities >= torch.tensor(thresholds, dtype=torch.float64)).long()
        several = [[";".join(classes[c] for c in row.nonzero().flatten()) for row in part] for part in (labels, named)]
        _write(
            path,
            [
                {"path": name(index), "labels": own, "answers": answer, "right": int(own == answer)}
                for index, (own, answer) in enumerate(zip(*several, strict=True))
            ],
            classes,
            probabilities,
        )
        return
    probabilities = logits.softmax(dim=1)
    best = probabilities.topk(min(2, probabilities.shape[1]), dim=1)
    own = probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)
    rows: list[dict[str, Any]] = [
        {
            "path": name(index),
            "label": classes[label],
            "answer": classes[first[0]],
            "confidence": confidence,
            "label_confidence": label_confidence,
            "right": int(first[0] == label),
            "second": classes[first[-1]],
        }
        for index, (label, first, confidence, label_confidence) in enumerate(
            zip(labels.tolist(), best.indices.tolist(), best.values[:, 0].tolist(), own.tolist(), strict=True)
        )
    ]
    _write(path, rows, classes, probabilities)


def _write(path: Path, rows: list[dict[str, Any]], classes: Sequence[str], probabilities: Tensor) -> None:
    make_parent(path)
    if path.suffix.lower() == ".csv":
        write_atomically(path, csv_text([list(rows[0]), *(list(row.values()) for row in rows)]))
        return
    pyarrow = _pyarrow()
    table = pyarrow.Table.from_pylist(rows)
    table = table.append_column("probabilities", pyarrow.array(list(probabilities.float().numpy())))
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table.replace_schema_metadata({"classes": "\n".join(classes)}), sink)
    write_atomically(path, sink.getvalue().to_pybytes())


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            "--answers FILE.parquet needs pyarrow: pip install 'conveyor[parquet]', or name a .csv file"
        ) from None
    return pyarrow
