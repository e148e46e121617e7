"""Lists of images in CSV or parquet files: columns `path` and `label`, or `labels` for several classes. No torch here.

Instead of labels, each class may have a column of its own with 1 where an image has it and 0 where not. Also `split`
(train, validation, ...; without it --hold-out or --folds divide) and `group`. Paths are relative to the list's folder. A
folder may have one list for each split: train.csv and validation.csv (or val, valid, test).
"""

import contextlib
import csv
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conveyor.data.formats.folders import SPLIT_FOLDERS
from conveyor.data.formats.listing import Listing, Pairs
from conveyor.errors import UserError, first_line, needed

SUFFIXES = (".csv", ".parquet")
PATHS = ("path", "file_name", "filename", "file")
MEANINGS = ("label", "labels", "split", "group")
_LOOKED_FOR = 16
"""Files that are looked for before a run starts, spread over the list: a wrong folder is found at once."""

Columns = dict[str, Sequence[Any]]
Images = Mapping[str, Sequence[tuple[str, tuple[str, ...]]]]
"""By split: the name of each image and its classes."""


def find(root: Path) -> dict[str, Path]:
    """The list files that `root` is or has, by split; `all` for a single one. Empty: it has none."""
    if root.is_file() and root.suffix.lower() in SUFFIXES:
        return {"all": root}
    found = {}
    for split, names in SPLIT_FOLDERS.items():
        candidates = (root / f"{name}{suffix}" for name in names for suffix in SUFFIXES)
        path = next((path for path in candidates if path.is_file() and _is_list(path)), None)
        if path is not None:
            found[split] = path
    return found if "train" in found else {}


def read(files: Mapping[str, Path], *, look: bool = True) -> Listing:
    """The images that the list files name; all of them as `train` where nothing says their split.

    With `look`, some are looked for on the disk.
    """
    return _read(tuple((split, path.resolve(), path.stat().st_mtime_ns) for split, path in files.items()), look)


def columns(path: Path, errors: str = "strict") -> Columns:
    """The columns of a CSV or parquet file; names with a meaning here are lower-case, others may be classes.

    With `errors="surrogateescape"`, of a file that we wrote, names need not be UTF-8.
    """
    if path.suffix.lower() == ".parquet":
        file = parquet(path)
        with readable_parquet(path):
            table = file.read()
            return {_known(name): table.column(name).to_pylist() for name in table.column_names}
    try:
        with open(path, newline="", encoding="utf-8-sig", errors=errors) as file:
            rows = csv.reader(file)
            head = [_known(name.strip()) for name in next(rows, [])]
            body = [row for row in rows if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is no CSV file in UTF-8: {error}") from None
    uneven = next((number for number, row in enumerate(body, start=2) if len(row) != len(head)), None)
    if uneven is not None:
        raise UserError(f"{path} line {uneven} has not the {len(head)} fields of its first line ({', '.join(head)})")
    return {name: [row[place] for row in body] for place, name in enumerate(head)}


def parquet(path: Path) -> Any:
    """The open parquet file, of `pyarrow`."""
    library = needed("pyarrow.parquet", f"reading {path.name}", "parquet")
    with readable_parquet(path):
        return library.ParquetFile(path)


@contextlib.contextmanager
def readable_parquet(path: Path) -> Iterator[None]:
    """What the library raises for a damaged file, at its head or in any of its pages, as a sentence."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no readable parquet file: {first_line(error)}") from None


def _is_list(path: Path) -> bool:
    if path.suffix == ".parquet":
        return any(name.lower() in PATHS for name in parquet(path).schema_arrow.names)
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        return any(name.strip().strip('"').lower() in PATHS for name in file.readline().split(","))


@functools.lru_cache(maxsize=4)
def _read(files: tuple[tuple[str, Path, int], ...], look: bool) -> Listing:
    root = files[0][1].parent
    images: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    groups: dict[str, list[str]] = {}
    several, named = False, list[str]()
    for split, path, _ in files:
        found = columns(path)
        place = next((name for name in PATHS if name in found), None)
        column = next((name for name in ("labels", "label") if name in found), None)
        binary = _binary(found) if column is None else []
        if place is None or not (column or binary) or not found[place]:
            raise UserError(
                f"{path} is no list of images: it needs a column path and a column label (or labels, several separated by "
                f"semicolons, or a column of 0 and 1 for each class) and a line for each image; it has "
                f"{', '.join(found) or 'nothing'}"
                + ("; separate the columns by commas, not by semicolons or tabs" if _is_uncommon(found) else "")
            )
        several = several or column != "label"
        named = named or binary
        values = (
            found[column]
            if column
            else [[name for name in binary if str(found[name][i]) in ("1", "True")] for i in range(len(found[place]))]
        )
        splits = [_split(value, path) for value in found["split"]] if "split" in found else [split] * len(found[place])
        for index, (name, value, part) in enumerate(zip(found[place], values, splits, strict=True)):
            own = _classes(value, several=column != "label")
            if column == "label" and not own:
                raise UserError(f"{path} has no label for {name}: give it one, or write all of them in a column labels")
            images.setdefault(part, []).append((str(name), own))
            if "group" in found:
                groups.setdefault(part, []).append(str(found["group"][index]))
        if look:
            _look_for(root, found[place], path)
    if "all" in images:
        images, groups = {"train": images["all"]}, {"train": groups["all"]} if groups else {}
    if "train" not in images:
        raise UserError(f"{files[0][1]} has no images for training: its column split says {', '.join(images)}")
    classes = tuple(named) or in_order({name for _, value in images["train"] for name in value})
    pairs, sets = numbered(images, classes, files[0][1])
    _refuse_twice(images, files[0][1])
    kept = {split: tuple(part) for split, part in groups.items()}
    return Listing(root, classes, pairs, label_sets=sets if several else {}, groups=kept)


def _refuse_twice(images: Images, path: Path) -> None:
    """Refuse an image with two labels, and one that would train and validate; twice in training alone is a weight."""
    seen: dict[str, tuple[str, tuple[str, ...]]] = {}
    for split, part in images.items():
        for name, label in part:
            label = tuple(sorted(label))
            first = seen.setdefault(os.path.normpath(name), (split, label))
            if first[1] != label:
                said = " and ".join(";".join(one) or "nothing" for one in (first[1], label))
                raise UserError(
                    f"{path} calls {name} {said}: give it one line, several labels in a column labels (a;b)"
                )
            if first[0] != split:
                raise UserError(f"{path.parent} has {name} for training and for validation: keep one of the two lines")
    if "validation" not in images and len(seen) < len(images["train"]):
        raise UserError(
            f"{path} names an image more than once, so that copies of training images could be held out: keep one line for "
            "each, or add a column split"
        )


def _known(name: str) -> str:
    return name.lower() if name.lower() in (*PATHS, *MEANINGS) else name


def _is_uncommon(found: Columns) -> bool:
    """Whether the one column of a file is several, separated by something else than commas."""
    return len(found) == 1 and any(mark in name for name in found for mark in ";\t|")


def _binary(found: Columns) -> list[str]:
    """The columns that hold 0 and 1 alone, if all that have no other meaning do."""
    others = [name for name in found if name not in (*PATHS, *MEANINGS)]
    return others if all(str(value) in ("0", "1", "True", "False") for name in others for value in found[name]) else []


def _split(value: Any, path: Path) -> str:
    text = str(value).strip().lower()
    for split, names in SPLIT_FOLDERS.items():
        if text in names:
            return split
    raise UserError(f"{path} has {value!r} in its column split: write train or validation (or val, valid, test)")


def _classes(value: Any, *, several: bool) -> tuple[str, ...]:
    if value is None:
        return ()
    parts: Iterable[Any] = value if isinstance(value, list) else str(value).split(";") if several else (value,)
    return tuple(text for part in parts if (text := str(part).strip()))


def in_order(names: set[str]) -> tuple[str, ...]:
    """Sorted by name, numbers by value: the same on every machine."""
    return tuple(sorted(names, key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name)))


def numbered(
    images: Images, classes: Sequence[str], path: Path
) -> tuple[dict[str, Pairs], dict[str, tuple[tuple[int, ...], ...]]]:
    """The `files` and `label_sets` of a `Listing`, by split."""
    number = {name: index for index, name in enumerate(classes)}
    unknown = next((one for part in images.values() for _, names in part for one in names if one not in number), None)
    if unknown is not None:
        raise UserError(f"the class {unknown!r} in {path.parent} has validation images only: training needs some too")
    sets = {
        split: tuple(tuple(sorted({number[one] for one in names})) for _, names in part)
        for split, part in images.items()
    }
    pairs = {
        split: tuple((name, own[0] if own else -1) for (name, _), own in zip(part, sets[split], strict=True))
        for split, part in images.items()
    }
    return pairs, sets


def _look_for(root: Path, names: Sequence[Any], path: Path) -> None:
    for name in names[:: max(1, len(names) // _LOOKED_FOR)]:
        if not (root / str(name)).is_file():
            raise UserError(f"{path} names {name}, which is not there: paths are relative to {root}")
