"""The classes of all samples of a data set at once, and what follows from their counts."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from conveyor.data.batch import Dataset
from conveyor.data.order import Indices
from conveyor.errors import UserError, did_you_mean

BALANCED = "balanced"


def labels_of(dataset: Dataset) -> Indices:
    """int64 [N], of multi-label sets [N, C]; a set that does not know its labels is read once."""
    known = getattr(dataset, "labels", None)
    count = len(dataset)
    if known is None:
        step = dataset.chunk or 512
        known = np.concatenate(
            [dataset.read(np.arange(first, min(first + step, count)), 0).labels for first in range(0, count, step)]
        )
    # A generated set has the labels of a few images that stand for all.
    found = np.asarray(known, dtype=np.int64)
    check_labels(dataset, np.arange(len(found)), found)
    return np.resize(found, (count, *found.shape[1:]))


def check_labels(dataset: Dataset, samples: Indices, labels: Indices) -> None:
    """Refuse a class number [N] that the data set does not have, by the name of its sample; rows of 0 and 1 have none."""
    outside = (labels < 0) | (labels >= dataset.num_classes)
    if labels.ndim == 1 and outside.any():
        place = int(outside.argmax())
        sample = int(samples[place]) % len(dataset)
        name = dataset.key(sample) if hasattr(dataset, "key") else f"sample {sample} of the data"
        raise UserError(
            f"{name} has the class {labels[place]}, but there are {dataset.num_classes} classes, from 0 to "
            f"{dataset.num_classes - 1}: mend its label, or the names of the classes"
        )


def class_weights(choice: str, dataset: Dataset, names: Sequence[str], num_classes: int) -> list[float]:
    """The weight of each class: as a file says, or for `balanced` N / (classes with samples x samples of the class).

    The balanced ones are 1 on average over the samples; a class without samples has the weight 1, which nothing uses.
    """
    if choice != BALANCED:
        return read_weights(Path(choice), names, num_classes)
    labels = labels_of(dataset)
    counts = np.bincount(labels, minlength=num_classes) if labels.ndim == 1 else labels.sum(axis=0)
    share = counts.sum() / np.count_nonzero(counts)
    return [float(share / count) if count else 1.0 for count in counts]


def read_weights(path: Path, names: Sequence[str], num_classes: int) -> list[float]:
    """The weights in a CSV file of lines CLASS,WEIGHT: every class by its name, or by its number where it has none."""
    classes = list(names) if len(names) == num_classes else [str(number) for number in range(num_classes)]
    weights: dict[str, float] = {}
    try:
        rows = [row for row in csv.reader(path.read_text(encoding="utf-8").splitlines()) if row]
        for row in rows[1:] if [cell.strip() for cell in rows[0]] == ["class", "weight"] else rows:
            name, text = (cell.strip() for cell in row)
            weights[name] = float(text)
    except OSError as error:
        raise UserError(f"cannot read the class weights in {path}: {error.strerror}") from None
    except (ValueError, IndexError):
        raise UserError(f"{path} should have lines CLASS,WEIGHT such as cat,2.5") from None
    unknown = [name for name in weights if name not in classes]
    if unknown:
        raise UserError(f"{path} has a weight for {unknown[0]!r}, which is no class{did_you_mean(unknown[0], classes)}")
    missing = [name for name in classes if name not in weights]
    if missing or not all(0 <= weight < float("inf") for weight in weights.values()):
        problem = f"no weight for {missing[0]!r}" if missing else "a weight that is negative or not finite"
        raise UserError(f"{path} has {problem}: give one line CLASS,WEIGHT for each of the {num_classes} classes")
    return [weights[name] for name in classes]
