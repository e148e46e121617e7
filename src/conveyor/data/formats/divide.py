"""Which images of a data set train and which validate: --hold-out, --folds, --group-by and --exclude-images. No torch here."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from conveyor.data.formats import folders, lists, packed, tfrecord_dataset
from conveyor.data.formats.listing import Listing
from conveyor.errors import UserError
from conveyor.files import user_path
from conveyor.options.data import DataOptions
from conveyor.options.units import many


def is_listed(root: Path) -> bool:
    """Whether `root` is or has a list of files or packed files, and not class folders or TFRecord files."""
    return bool(lists.find(root) or packed.find(root))


def records_folder(root: Path) -> Path | None:
    """The folder with TFRecord files that `root` means; None where it means a listing."""
    return None if is_listed(root) else tfrecord_dataset.find_folder(root)


def listing(root: Path, options: DataOptions, hold_out: float) -> Listing:
    """The images below `root` (or of the list file `root`), divided as the options say.

    Excluded images leave after the division, so that the other ones stay on their side.
    """
    divides = options.folds is not None or options.group_by is not None
    if files := lists.find(root):
        found = lists.read(files)
    elif packs := packed.find(root):
        found = packed.read(packs)
    else:
        found = folders.scan(root, 0.0 if divides else hold_out)
    if options.group_by is not None:
        found = found.grouped(_pattern(options.group_by))
        if all(
            group == name
            for split, part in found.files.items()
            for group, (name, _) in zip(found.groups[split], part, strict=True)
        ):
            first = next((name for part in found.files.values() for name, _ in part[:1]), "none")
            raise UserError(f"--group-by {options.group_by!r} finds no group in any name: they are such as {first!r}")
    if options.folds is not None:
        found = _folded(found, options)
    elif "validation" not in found.files if is_listed(root) else found.files.get("validation") == ():
        found = found.divided(hold_out)
    return _kept(found, options)


def in_memory(counts: Mapping[str, int], options: DataOptions) -> dict[str, tuple[str, list[int]]] | None:
    """(source, numbers) of the images of each split of a set without names; None: as they are.

    Its folds are drawn without a look at the classes; --exclude-images calls an image `train/17` or `validation/4`.
    """
    if options.group_by is not None:
        raise UserError("--group-by reads groups from the names of files: the images of this data set have none")
    if options.folds is None and options.exclude_images is None:
        return None
    found = Listing(Path(), (), {s: tuple((f"{s}/{number}", 0) for number in range(n)) for s, n in counts.items()})
    if options.folds is not None:
        found = _folded(found, options)
    return {
        split: (split if options.folds is None else "train", [int(name.rpartition("/")[2]) for name, _ in part])
        for split, part in _kept(found, options).files.items()
    }


def _kept(found: Listing, options: DataOptions) -> Listing:
    """Without the images that the file of --exclude-images names."""
    if options.exclude_images is None:
        return found
    path = user_path(options.exclude_images)
    if not path.is_file():
        raise UserError(f"--exclude-images {path}: there is no such file")
    out = _excluded(path.resolve(), path.stat().st_mtime_ns)
    kept = found.chosen(
        {
            split: (split, [i for i, (name, _) in enumerate(part) if name not in out])
            for split, part in found.files.items()
        }
    )
    if out and all(kept.count(split) == found.count(split) for split in found.files):
        first = next((name for part in found.files.values() for name, _ in part[:1]), "none")
        raise UserError(
            f"--exclude-images {path} names no image of this data set: it begins with {min(out)!r}, the images with {first!r}"
        )
    return kept


@functools.lru_cache(maxsize=2)
def _excluded(path: Path, _changed: int) -> frozenset[str]:
    """The names in a text file, one on each line, or in the column path of a CSV or parquet file."""
    if path.suffix.lower() not in lists.SUFFIXES:
        return frozenset(
            line.strip() for line in path.read_text("utf-8", "surrogateescape").splitlines() if line.strip()
        )
    found = lists.columns(path, "surrogateescape")
    column = next((name for name in lists.PATHS if name in found), None)
    if column is None:
        raise UserError(f"--exclude-images {path} has no column path, only {', '.join(found) or 'nothing'}")
    return frozenset(str(name) for name in found[column])


def _folded(found: Listing, options: DataOptions) -> Listing:
    folds, fold = options.folds or 0, options.fold or 0
    if not found.count("train"):
        raise UserError(f"--folds divides training images, and {found.root} has none")
    divided = found.folded(folds, fold)
    if not divided.count("validation") or not divided.count("train"):
        count, what = (len(set(found.groups["train"])), "group") if found.groups else (found.count("train"), "image")
        raise UserError(f"{many(count, what)} for {folds} folds: fold {fold} would be empty")
    return divided


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise UserError(f"--group-by {text!r} is no regular expression: {error}") from None
    return text
