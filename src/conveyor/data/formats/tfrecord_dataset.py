"""Data sets kept as TFRecord files: which files belong to a split, how many images they hold. No torch."""

import dataclasses
import re
from pathlib import Path

from conveyor.data.formats import tfds
from conveyor.data.formats.tfrecord import index_files
from conveyor.errors import UserError
from conveyor.files import parse_json, read_lines

STANDARD_SHARDS = {"train": 1024, "validation": 128}
SUMMARY = "dataset.json"
"""Written by `build-tfrecords`: counts and class names, so that nothing needs to be scanned."""
_NAME = re.compile(
    r"^(?:[a-z0-9_]+-)?(?P<split>train|validation|val|test)(?:\.tfrecord)?-(?P<number>\d{5})-of-(?P<total>\d{5})$"
)
_SUB_FOLDERS = ("imagenet-data", "tfrecords", "tf-records", "imagenet")
_SPLITS = {"train": "train", "validation": "validation", "val": "validation", "test": "validation"}


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Numbers of a folder of TFRecord files."""

    train_images: int
    validation_images: int
    classes: tuple[str, ...]


def shard_name(split: str, number: int, total: int) -> str:
    return f"{split}-{number:05d}-of-{total:05d}"


def record_files(folder: Path, split: str) -> list[Path]:
    """The files of a split in order; an error when some of the announced number are missing."""
    if not folder.is_dir():
        return []
    matches = [match for path in folder.iterdir() if (match := _NAME.match(path.name)) is not None]
    named = {match["split"] for match in matches if _SPLITS[match["split"]] == split}
    if "test" in named and len(named) > 1:
        # A test set without labels beside the validation set.
        named.discard("test")
    chosen = [match for match in matches if match["split"] in named]
    found = {int(match["number"]): folder / match.string for match in chosen}
    totals = {int(match["total"]) for match in chosen}
    if not found:
        return []
    if len(totals) > 1:
        raise UserError(
            f"{folder} mixes {split} files of {' and '.join(map(str, sorted(totals)))}: keep one set of them"
        )
    total = totals.pop()
    missing = sorted(set(range(total)) - set(found))
    if missing:
        raise UserError(
            f"{folder} lacks {len(missing)} of {total} {split} files, the first is {shard_name(split, missing[0], total)}: "
            "fetch or build the rest"
        )
    return [found[number] for number in range(total)]


def has_records(folder: Path) -> bool:
    return folder.is_dir() and any(_NAME.match(path.name) for path in folder.iterdir())


def find_folder(root: Path) -> Path | None:
    """`root`, or the usual sub-folder of it, that holds TFRecord files."""
    for candidate in (root, *(root / name for name in _SUB_FOLDERS), *tfds.folders("imagenet", root)):
        if has_records(candidate):
            return candidate
    return None


def summary(folder: Path, standard: Summary | None = None) -> Summary:
    """Counts and classes: from the summary file, from `standard` when the shard counts are ImageNet's, else by scanning."""
    path = folder / SUMMARY
    if path.is_file():
        try:
            content = parse_json(path.read_text(encoding="utf-8"))
            classes = tuple(str(name) for name in content["classes"])
            return Summary(int(content["train_images"]), int(content["validation_images"]), classes)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}): remove it, then the files are counted anew") from None
    files = {split: record_files(folder, split) for split in STANDARD_SHARDS}
    prepared = tfds.counts(folder) or {}
    if {"train", "validation"} <= set(prepared):
        return Summary(prepared["train"], prepared["validation"], label_names(folder))
    if standard is not None and {split: len(paths) for split, paths in files.items()} == STANDARD_SHARDS:
        return dataclasses.replace(standard, classes=label_names(folder) or standard.classes)
    counts = {split: sum(len(offsets) for offsets in index_files(paths)) for split, paths in files.items()}
    return Summary(counts["train"], counts["validation"], label_names(folder))


def check_count(folder: Path, split: str, found: int) -> None:
    """Refuse a split with other than the stated number of images: a file that ends after a whole record looks complete."""
    if not (folder / SUMMARY).is_file() and not set(STANDARD_SHARDS) <= set(tfds.counts(folder) or {}):
        return
    stated = summary(folder)
    wanted = stated.train_images if split == "train" else stated.validation_images
    if found != wanted:
        raise UserError(f"{folder} has {found} images for {split}, but states {wanted}: fetch or build the files again")


def label_names(folder: Path) -> tuple[str, ...]:
    """Class names from `labels.txt` (TensorFlow Datasets: `label.labels.txt`), one per line; empty without it."""
    path = next((path for name in ("labels.txt", "label.labels.txt") if (path := folder / name).is_file()), None)
    return () if path is None else tuple(read_lines(path))
