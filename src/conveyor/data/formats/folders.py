"""Images kept as one folder per class: finding the splits, the classes and the files. No torch here."""

import functools
import os
from pathlib import Path

from conveyor.data.formats.listing import Listing
from conveyor.errors import UserError

SPLIT_FOLDERS = {"train": ("train", "training"), "validation": ("validation", "val", "valid", "test")}
IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


def split_folder(root: Path, split: str) -> Path | None:
    """`root/train`, or `root/validation`, `root/val`, ...: the first that holds class folders."""
    for name in SPLIT_FOLDERS[split]:
        candidate = root / name
        if candidate.is_dir() and _class_folders(candidate):
            return candidate
    return None


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
    """The error for a folder that is not there."""
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
    listing = _scan(resolved, _fingerprint(resolved), hold_out)
    if not empty_classes and listing.count("train"):
        _refuse_empty(listing)
    return listing


def _refuse_empty(listing: Listing) -> None:
    """Refuse class folders without images: nothing would train these classes, and later class numbers would shift."""
    filled = {label for _, label in listing.files["train"]}
    empty = [name for number, name in enumerate(listing.classes) if number not in filled]
    if empty:
        folder = split_folder(listing.root, "train") or listing.root
        raise UserError(
            f"{folder} has class folders without images ({', '.join(empty[:10])}{', ...' if len(empty) > 10 else ''}): "
            "remove them, or put images into them"
        )


@functools.lru_cache(maxsize=4)
def _scan(root: Path, _fingerprint: tuple[tuple[str, int], ...], hold_out: float) -> Listing:
    found = {split: split_folder(root, split) for split in SPLIT_FOLDERS}
    if hold_out < 1 and is_plain(root):
        names = tuple(_class_folders(root))
        every = tuple(
            (image, number) for number, name in enumerate(names) for image in _images_below(root, root / name)
        )
        return Listing(root, names, {"train": every}).divided(hold_out)
    train = found["train"]
    if train is None and found["validation"] is None:
        if not _class_folders(root):
            raise UserError(
                f"{root} has no images: it needs train/ and validation/ (or val/), each with one folder per class"
            )
        found["validation"] = root
    reference = train or found["validation"]
    assert reference is not None
    classes = tuple(_class_folders(reference))
    number = {name: index for index, name in enumerate(classes)}
    files: dict[str, tuple[tuple[str, int], ...]] = {}
    for split, folder in found.items():
        if folder is None:
            continue
        extra = [name for name in _class_folders(folder) if name not in number]
        if extra:
            raise UserError(
                f"{folder} has the class {extra[0]!r}, which {reference} has not: the class folders of both must agree"
            )
        files[split] = tuple(
            (relative, number[name])
            for name in _class_folders(folder)
            for relative in _images_below(root, folder / name)
        )
    return Listing(root, classes, files)


def _class_folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _has_image(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in entries)


def _images_below(root: Path, folder: Path) -> list[str]:
    found = []
    for current, children, names in os.walk(folder, followlinks=True):
        children[:] = sorted(name for name in children if not _is_cyclic_link(Path(current, name)))
        relative = Path(current).relative_to(root)
        found += [str(relative / name) for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
    return sorted(found)


def _is_cyclic_link(folder: Path) -> bool:
    """Whether a link points to a folder that contains it: following it would count every image many times."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _fingerprint(root: Path) -> tuple[tuple[str, int], ...]:
    """Names and times of the class folders: changes whenever a file is added to or removed from one of them."""
    stamps = []
    for split in (*SPLIT_FOLDERS["train"], *SPLIT_FOLDERS["validation"], "."):
        folder = root / split
        if folder.is_dir():
            with os.scandir(folder) as entries:
                stamps += [(f"{split}/{e.name}", e.stat().st_mtime_ns) for e in entries if e.is_dir()]
    return tuple(sorted(stamps))
