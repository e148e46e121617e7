"""Images kept as one folder per class: finding the splits, the classes and the files. No torch here."""

import functools
import os
from pathlib import Path

from conveyor.data.formats.listing import Listing
from conveyor.errors import UserError
from conveyor.monitor.run_files import LOCK, OPTIONS, is_run_file

SPLIT_FOLDERS = {"train": ("train", "training"), "validation": ("validation", "val", "valid", "test")}
IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


def split_folder(root: Path, split: str) -> Path | None:
    """`root/train`, or `root/validation`, `root/val`, `root/Val`, ...: the first that holds class folders."""
    return next((folder for folder in _candidates(root, split) if _class_folders(folder)), None)


def _candidates(root: Path, split: str) -> list[Path]:
    """The folders in `root` that may be `split` by their names in any case, in the order in which they are preferred."""
    names = SPLIT_FOLDERS[split]
    found = sorted(
        (names.index(name.lower()), name != name.lower(), name) for name in _folders(root) if name.lower() in names
    )
    return [root / name for *_, name in found]


def is_plain(root: Path) -> bool:
    """Whether `root` holds class folders and neither train/ nor validation/."""
    return (
        root.is_dir() and not any(split_folder(root, split) for split in SPLIT_FOLDERS) and bool(_class_folders(root))
    )


def has_images(root: Path) -> bool:
    """Whether `root`, or its train/, has a folder with an image in it: names only, up to the first."""
    base = (split_folder(root, "train") if root.is_dir() else None) or root
    return base.is_dir() and any(_has_image(base / name) for name in _class_folders(base))


def missing(folder: Path) -> UserError:
    """The error for a folder that is not there, or no folder."""
    if folder.is_file():
        return UserError(f"{folder} is a file: unpack it and give the folder, or give a CSV or parquet list of images")
    return UserError(f"the data folder {folder} does not exist: give an existing one with --data-dir or DATA_DIR")


def scan(root: Path, hold_out: float = 1.0, *, empty_classes: bool = False) -> Listing:
    """List all images below `root`, classes numbered by sorted folder name, files sorted: the same on every machine.

    Of a folder that has its classes directly, without train/ and validation/, the share `hold_out` of each class is for
    validation (evenly spread over the sorted files), the rest for training; with 1 it is a set to validate on.
    Class folders without a training image are refused, unless `empty_classes` is true. The result is cached as long as
    the class folders are unchanged: three callers of a run share one scan.
    """
    resolved = root.resolve()
    if not resolved.is_dir():
        raise missing(root)
    listing, empty = _scan_and_check(resolved, _fingerprint(resolved), hold_out)
    # Nothing would train these classes, and later class numbers would shift.
    if empty and not empty_classes:
        folder = split_folder(listing.root, "train") or listing.root
        raise UserError(
            f"{folder} has class folders without images ({', '.join(empty[:10])}{', ...' if len(empty) > 10 else ''}): "
            "remove them, or put images into them"
        )
    return listing


@functools.lru_cache(maxsize=4)
def _scan_and_check(
    root: Path, _fingerprint: tuple[tuple[str, int], ...], hold_out: float
) -> tuple[Listing, tuple[str, ...]]:
    """The listing, and its classes without images for training where others have some."""
    listing = _scan(root, hold_out)
    filled = {label for _, label in listing.files.get("train", ())}
    empty = (name for number, name in enumerate(listing.classes) if filled and number not in filled)
    return listing, tuple(empty)


def _scan(root: Path, hold_out: float) -> Listing:
    found = {split: split_folder(root, split) for split in SPLIT_FOLDERS}
    if hold_out < 1 and is_plain(root):
        images = _classes(root, root)
        every = tuple((image, number) for number, name in enumerate(images) for image in images[name])
        return Listing(root, tuple(images), {"train": every}).divided(hold_out)
    train = found["train"]
    if train is None and found["validation"] is None:
        if not _class_folders(root) and _has_image(root):
            raise UserError(
                f"{root} has images, but no class folders: put those of each class into a folder of its own"
            )
        if not _class_folders(root):
            raise UserError(
                f"{root} has no images: it needs train/ and validation/ (or val/), each with one folder per class"
            )
        found["validation"] = root
    reference = train or found["validation"]
    assert reference is not None
    classes = tuple(_classes(root, reference))
    number = {name: index for index, name in enumerate(classes)}
    files: dict[str, tuple[tuple[str, int], ...]] = {}
    for split, folder in found.items():
        if folder is None:
            continue
        images = _classes(root, folder)
        extra = [name for name in images if name not in number]
        if extra:
            raise UserError(
                f"{folder} has the class {extra[0]!r}, which {reference} has not: the class folders of both must agree"
            )
        files[split] = tuple((relative, number[name]) for name in images for relative in images[name])
    return Listing(root, classes, files)


def _folders(root: Path) -> list[str]:
    """The folders in `root`, sorted; a link that leads nowhere is refused, as it may have been meant for a class."""
    with os.scandir(root) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    for entry in shown:
        if entry.is_symlink() and not Path(entry.path).exists():
            raise UserError(f"{entry.path} is a link that leads nowhere: mend it, or remove it")
    return sorted(entry.name for entry in shown if entry.is_dir())


def _class_folders(folder: Path) -> list[str]:
    """The folders in `folder` that may be classes: not those of a run, if it is a run folder too."""
    holds_run = (folder / LOCK).exists() and (folder / OPTIONS).exists()
    return [name for name in _folders(folder) if not (holds_run and is_run_file(name))]


def _classes(root: Path, folder: Path) -> dict[str, list[str]]:
    """The images of each class in `folder`, relative to `root`. A folder with nothing but runs in it is no class."""
    images = {name: _images_below(root, folder / name) for name in _class_folders(folder)}
    return {name: found for name, found in images.items() if found or not _holds_runs(folder / name)}


def _holds_runs(folder: Path) -> bool:
    """Whether a folder without images is a run's, or the parent of some."""
    return (folder / LOCK).exists() or any((folder / name / LOCK).exists() for name in _folders(folder))


def _has_image(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in entries)


def _images_below(root: Path, folder: Path) -> list[str]:
    found = []
    for current, children, names in os.walk(folder, followlinks=True):
        children[:] = sorted(name for name in children if not _is_cyclic_link(Path(current, name)))
        # As text from here on: a path object for each of a million files takes seconds.
        relative = Path(current).relative_to(root)
        images = [f"{relative}/{name}" for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
        if LOCK in names and not images:
            children.clear()  # the pictures in a run folder are of its report
        found += images
    return sorted(found)


def _is_cyclic_link(folder: Path) -> bool:
    """Whether a link points to a folder that contains it: following it would count every image many times."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _fingerprint(root: Path) -> tuple[tuple[str, int], ...]:
    """Names and times of the class folders: changes whenever a file is added to or removed from one of them."""
    stamps = []
    for folder in (*_candidates(root, "train"), *_candidates(root, "validation"), root):
        stamps += [(str(folder / name), (folder / name).stat().st_mtime_ns) for name in _folders(folder)]
    return tuple(sorted(stamps))
