"""The images of a data set by name: what class folders, lists of files and packed files have in common. No torch here."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from conveyor.data.order import Indices, hashed_order

Pairs: TypeAlias = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """The images of a data set; `files[split]` pairs a name, the path relative to the root, with a class number."""

    root: Path
    classes: tuple[str, ...]
    files: dict[str, Pairs]
    label_sets: dict[str, tuple[tuple[int, ...], ...]] = dataclasses.field(default_factory=dict)
    """All classes of each image, in ascending order, where a list has a column `labels`; then the class number in `files`
    is the first of them, or -1 without any."""
    groups: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """The group of each image (a patient, a camera), which no division separates; empty without groups."""
    packs: dict[str, tuple[Path, ...]] = dataclasses.field(default_factory=dict)
    """Files that hold many images each; without them every name is a file."""
    places: dict[str, Indices] = dataclasses.field(default_factory=dict)
    """int64 [N, 3]: number in `packs`, first byte and length of each image."""
    held_out: bool = False
    """Whether the validation images are a part of the training images that `--hold-out` or `--folds` took away."""

    def count(self, split: str) -> int:
        """Images of a split; 0 when there is no such split."""
        return len(self.files.get(split, ()))

    def chosen(self, picks: Mapping[str, tuple[str, Sequence[int]]], *, held_out: bool = False) -> "Listing":
        """The images with numbers `picks[split][1]` of the split `picks[split][0]`, as `split`."""
        changed: dict[str, Any] = {
            name: {
                split: tuple(getattr(self, name)[source][number] for number in numbers)
                for split, (source, numbers) in picks.items()
                if source in getattr(self, name)
            }
            for name in ("files", "label_sets", "groups")
        }
        places = {s: self.places[source][np.asarray(n, np.int64)] for s, (source, n) in picks.items() if self.places}
        packs = {split: self.packs[source] for split, (source, _) in picks.items() if self.packs}
        return dataclasses.replace(self, **changed, places=places, packs=packs, held_out=held_out or self.held_out)

    def divided(self, share: float) -> "Listing":
        """All images are in `train`: the share of each class, evenly spread, becomes `validation`, at least one of several.

        With groups, whole ones: about that share of all images.
        """
        if share >= 1:
            return self.chosen({"validation": ("train", range(self.count("train")))})
        if share > 0 and self.groups:
            return self.folded(max(2, round(1 / share)), 0)
        held: set[int] = set()
        labels = np.array([label for _, label in self.files["train"]], np.int64)
        order = np.argsort(labels, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
            count = min(max(round(len(members) * share), 1), len(members) - 1) if share > 0 and len(members) > 1 else 0
            held |= {int(members[(2 * index + 1) * len(members) // (2 * count)]) for index in range(count)}
        return self._apart(held)

    def folded(self, folds: int, fold: int) -> "Listing":
        """Fold `fold` (from 0) of the training images for validation, the others for training."""
        groups = self.groups.get("train", ())
        numbers = fold_numbers([label for _, label in self.files["train"]], groups, folds)
        return self._apart({index for index, number in enumerate(numbers) if number == fold})

    def grouped(self, pattern: str) -> "Listing":
        """With the group of each image read from its name: the first bracket of the regular expression, else its whole match."""
        found = re.compile(pattern)

        def group(name: str) -> str:
            match = found.search(name)
            return (match and match[min(1, found.groups)]) or name

        groups = {split: tuple(group(name) for name, _ in pairs) for split, pairs in self.files.items()}
        return dataclasses.replace(self, groups=groups)

    def _apart(self, held: set[int]) -> "Listing":
        total = range(self.count("train"))
        rest = [index for index in total if index not in held]
        return self.chosen({"train": ("train", rest), "validation": ("train", sorted(held))}, held_out=True)


def fold_numbers(labels: Sequence[int], groups: Sequence[str], folds: int) -> list[int]:
    """The fold, 0 to folds - 1, of each image; every class is spread evenly. The same in every run, whatever its seed.

    Without groups the images of a class, in an order that hashes their numbers, are dealt in turn. A group stays whole:
    the largest first, each goes where its classes are rarest, which is where sum over classes of (share of the class in
    the fold)^2 grows least.
    """
    named, inverse = np.unique(np.asarray(labels, np.int64), return_inverse=True)
    if not groups:
        order = hashed_order(len(labels), 0)
        order = order[np.argsort(inverse[order], kind="stable")]
        numbers = np.empty(len(labels), np.int64)
        numbers[order] = np.arange(len(labels)) % folds
        return [int(number) for number in numbers]
    names, group = np.unique(np.asarray(groups), return_inverse=True)
    # The images of each class in each group, of those pairs that have some: a table of all is groups x classes.
    pairs, counts = np.unique(group * len(named) + inverse, return_counts=True)
    of_group = np.searchsorted(pairs, np.arange(len(names) + 1) * len(named))
    classes = pairs % len(named)
    shares = counts / np.bincount(inverse)[classes]
    held, row = np.zeros((folds, len(named))), np.zeros(len(named))
    where = np.empty(len(names), np.int64)
    for one in np.argsort(-np.bincount(group), kind="stable"):
        own = slice(of_group[one], of_group[one + 1])
        row[classes[own]] = shares[own]
        where[one] = np.argmin((row * (2 * held + row)).sum(axis=1))
        held[where[one]] += row
        row[classes[own]] = 0
    return [int(number) for number in where[group]]
