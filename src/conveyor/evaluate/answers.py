"""The answer to every validation image as a CSV or parquet file."""

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
    """Logits [N, C] and labels [N] of one validation, rows in the order of the data set."""

    def __init__(self, images: int, num_classes: int, device: torch.device) -> None:
        self.logits = torch.zeros(images, num_classes, device=device)
        self.labels = torch.zeros(images, dtype=torch.int64, device=device)

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


def write_answers(path: Path, answers: AllAnswers, dataset: Dataset) -> None:
    """A row for each image: path, label, answer, its confidence (softmax), the label's own, whether it is right, the second.

    A parquet file also has all probabilities, in the order of the classes.
    """
    name = getattr(dataset, "key", lambda index: f"validation/{index}")
    classes = dataset.class_names or [str(number) for number in range(answers.logits.shape[1])]
    probabilities = answers.logits.cpu().double().softmax(dim=1)
    labels = answers.labels.cpu()
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
