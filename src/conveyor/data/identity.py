"""Which data a run was trained on: the names of its classes and a fingerprint of its images, stored with it. No torch.

The fingerprint covers names, labels and order, not contents: class folders by relative path and class number, TFRecord
by the files' names and sizes. So a copy elsewhere is the same data, and files added, removed or renamed make other data.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from conveyor.data import catalogue
from conveyor.data.catalogue import DatasetInfo
from conveyor.data.formats import divide, folders, locate, tfrecord_dataset
from conveyor.data.formats.sources import SOURCES
from conveyor.errors import UserError
from conveyor.options.data import DataOptions

_MOST_LISTED = 12
CURE = "give the folder that the run was trained on with --data-dir, or start a new run from its weights with --weights"


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """What a checkpoint says of the data; plain JSON in both directions."""

    name: str
    class_names: tuple[str, ...]
    train_images: int
    validation_images: int
    fingerprint: str
    """Empty where there is nothing on the disk that could differ."""

    @classmethod
    def of(cls, options: DataOptions, info: DatasetInfo) -> "Identity":
        made_up = options.generated_data or options.synthetic_data
        fingerprint = "" if made_up else _fingerprint(options, info)
        return cls(info.name, info.class_names, info.train_images, info.validation_images, fingerprint)

    def to_json(self) -> dict[str, Any]:
        # Not `asdict`, which copies every name by itself: jobs of several workers call this after each update.
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)} | {
            "class_names": list(self.class_names)
        }

    def check(self, stored: Mapping[str, Any]) -> None:
        """Refuse to resume with data other than `stored`, the output of `to_json`."""
        check_classes(stored.get("class_names", ()), self.class_names)
        known = stored.get("fingerprint", "")
        if not known or not self.fingerprint or known == self.fingerprint:
            return
        raise UserError(
            f"the run was trained on {stored.get('name')} with {stored.get('train_images')} images for training and "
            f"{stored.get('validation_images')} for validation, this is {self.name} with {self.train_images} and "
            f"{self.validation_images}, and their files differ: {CURE}"
        )


def check_stored(options: DataOptions, progress: Mapping[str, Any]) -> None:
    """Refuse data whose classes are not those of a checkpoint, before their number is compared with anything else."""
    if progress.get("data", {}).get("name") != "own":
        check_classes(progress.get("class_names", ()), catalogue.info(options).class_names)


def check_classes(stored: Sequence[str], present: Sequence[str]) -> None:
    """Refuse data whose classes have other names, or another order, than those that a model was trained on."""
    if not stored or not present or tuple(stored) == tuple(present):
        return
    place = next((i for i, (a, b) in enumerate(zip(stored, present, strict=False)) if a != b), None)
    first = min(len(stored), len(present)) if place is None else place
    raise UserError(
        f"the model was trained on the classes {_listed(stored, first)}, the data have {_listed(present, first)}: "
        f"they differ from number {first} on; {CURE}"
    )


def _listed(names: Sequence[str], around: int) -> str:
    """All of a few names, else those around the first difference."""
    if len(names) <= _MOST_LISTED:
        return ", ".join(names) or "none"
    start = max(0, min(around - _MOST_LISTED // 2, len(names) - _MOST_LISTED))
    shown = ", ".join(names[start : start + _MOST_LISTED])
    return (
        f"{'..., ' if start else ''}{shown}{', ...' if start + _MOST_LISTED < len(names) else ''} ({len(names)} in all)"
    )


def _fingerprint(options: DataOptions, info: DatasetInfo) -> str:
    folder = catalogue.data_dir(options)
    if info.kind == "memory":
        # The copies of one set hold the same images, but not all in the same order.
        copy = locate.search(info.name, folder) if info.name in SOURCES else None
        layout = copy.layout if copy is not None else ""
        if options.folds is None and options.exclude_images is None:
            return layout
        picks = divide.in_memory(catalogue.whole_counts(options), options) or {}
        taken = repr([(split, source, [*numbers]) for split, (source, numbers) in picks.items()])
        return f"{layout} {hashlib.sha256(taken.encode()).hexdigest()}"
    if info.kind != "files" or folder is None:
        return ""
    digest = hashlib.sha256()
    records = divide.records_folder(folder)
    for split in folders.SPLIT_FOLDERS:
        if records is not None:
            for path in tfrecord_dataset.record_files(records, split):
                digest.update(f"{path.name}\0{path.stat().st_size}\n".encode())
        else:
            listing = divide.listing(folder, options, catalogue.hold_out(options, info))
            for relative, label in listing.files.get(split, ()):
                digest.update(f"{relative}\0{label}\n".encode("utf-8", "surrogateescape"))
            if options.multi_label:
                digest.update(repr(listing.label_sets.get(split)).encode())
    return digest.hexdigest()
