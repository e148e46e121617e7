"""Checking data on the disk: counts, sizes, checksums, decodability; every bad file is named."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

import simplejpeg

from conveyor.data import catalogue
from conveyor.data.formats import folders, lists, locate, packed, tfrecord_dataset
from conveyor.data.formats.idx import read_maybe_zipped
from conveyor.data.formats.listing import Listing
from conveyor.data.formats.locate import Copy
from conveyor.data.formats.sources import SOURCES
from conveyor.data.formats.stores import FolderStore, PackedStore, RecordStore
from conveyor.data.formats.tfrecord import index_of
from conveyor.data.open import read_copy
from conveyor.data.photo import jpeg
from conveyor.data.photo.decode import BadImageError, Encoded
from conveyor.data.photo.encoded import Store
from conveyor.errors import UserError
from conveyor.monitor.progress import mapped, track


@dataclasses.dataclass(slots=True)
class Report:
    """What was found: `problems` is one line per bad file or missing thing, empty when all is well."""

    name: str
    folder: Path
    images: dict[str, int] = dataclasses.field(default_factory=dict)
    classes: int = 0
    files: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems


def verify(folder: Path, *, decode: bool = True, threads: int = 4) -> Report:
    """Check everything in `folder`: a small set, TFRecord files, class folders, a list or packed files, whichever it holds."""
    if listed := lists.find(folder):
        return _verify_listing("list", folder, lambda: lists.read(listed, look=False), decode, threads)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder or a list of images: name the one that holds the data")
    for source in SOURCES.values():
        copy = locate.copy_below(source, folder)
        if copy is not None and (source.name != "fashion-mnist" or "fashion" in str(copy.folder).lower()):
            return _verify_copy(_named(copy))
    records = tfrecord_dataset.find_folder(folder)
    if records is not None:
        return _verify_records(records, decode, threads)
    if packs := packed.find(folder):
        return _verify_listing("packed", folder, lambda: packed.read(packs), decode, threads)
    return _verify_listing("folder", folder, lambda: folders.scan(folder, empty_classes=True), decode, threads)


def check_image(data: bytes) -> str | None:
    """Why an image is bad, None when it is good. Stricter than reading: damage inside the picture counts."""
    try:
        image = Encoded(data)
        if image.header is not None:
            try:
                simplejpeg.decode_jpeg(data, strict=True)
            except ValueError as error:
                return str(error)
            return None
        if jpeg.is_jpeg(data) and not jpeg.is_complete(data):
            return "the file ends too early"
        image.pixels(3)
    except BadImageError as error:
        return str(error)
    return None


def _named(copy: Copy) -> Copy:
    """MNIST and Fashion-MNIST have the same file names: they are told apart by the folder's name or the content."""
    if copy.source.name != "mnist" or copy.layout == "tfds":
        return copy
    fashion = SOURCES["fashion-mnist"]
    labels = copy.files["t10k-labels-idx1-ubyte"]
    content = hashlib.md5(read_maybe_zipped(labels), usedforsecurity=False).hexdigest()
    if "fashion" in str(copy.folder).lower() or content == fashion.files["t10k-labels-idx1-ubyte"]:
        return dataclasses.replace(copy, source=fashion)
    return copy


def _verify_copy(copy: Copy) -> Report:
    source = copy.source
    known = catalogue.known()[source.name]
    report = Report(source.name, copy.folder, classes=known.num_classes, files=len(copy.files))
    # Files prepared by TensorFlow Datasets have no checksum; their records have, checked when they are read.
    expected = {"plain": source.files, "python": source.python_files}.get(copy.layout, {})
    with track(len(copy.files), "Verify", unit="files") as bar:
        for name, path in copy.files.items():
            try:
                md5 = hashlib.md5(read_maybe_zipped(path), usedforsecurity=False).hexdigest()
                if expected.get(name) and md5 != expected[name]:
                    report.problems.append(f"{path}: MD5 {md5} instead of {expected[name]}")
            except UserError as error:
                report.problems.append(str(error))
            bar.advance()
    for split, count in (("train", known.train_images), ("validation", known.validation_images)):
        try:
            images, labels = read_copy(copy, split)
        except UserError as error:
            report.problems.append(str(error))
            continue
        report.images[split] = len(images)
        if len(images) != count:
            report.problems.append(f"{copy.folder}: {len(images)} images for {split} instead of {count}")
        if len(labels) and int(labels.max()) >= known.num_classes:
            report.problems.append(
                f"{copy.folder}: label {int(labels.max())} in {split}, but {known.num_classes} classes"
            )
    return report


def _verify_listing(name: str, folder: Path, read: Callable[[], Listing], decode: bool, threads: int) -> Report:
    try:
        listing = read()
    except UserError as error:
        if name == "folder":
            raise
        return Report(name, folder, problems=[str(error)])
    report = Report(name, folder, classes=len(listing.classes))
    if len(listing.classes) == 1 and not listing.label_sets:
        report.problems.append(f"{folder}: {listing.classes[0]} is its only class, so nothing can be learnt")
    kind = PackedStore if listing.packs else FolderStore
    for split in listing.files:
        store = kind(listing, split) if listing.count(split) else None
        report.images[split] = listing.count(split)
        if store is None:
            report.problems.append(f"{folder}: no images for {split}")
            continue
        report.files += len(store)
        labels = {label for _, label in listing.files[split]}
        labels |= {label for classes in listing.label_sets.get(split, ()) for label in classes}
        report.problems += [
            f"{folder}: no images of class {name} in {split}"
            for number, name in enumerate(listing.classes)
            if number not in labels
        ]
        if decode or name != "folder":
            report.problems += _all(store, len(listing.classes), decode, threads, split)
    return report


def _verify_records(folder: Path, decode: bool, threads: int) -> Report:
    names = tfrecord_dataset.label_names(folder)
    report = Report("tfrecord", folder, classes=len(names))
    for split in tfrecord_dataset.STANDARD_SHARDS:
        files = tfrecord_dataset.record_files(folder, split)
        report.files += len(files)
        good: list[Path] = []
        for path in files:
            try:
                index_of(path)
                good.append(path)
            except UserError as error:
                report.problems.append(str(error))
        store = RecordStore(good)
        report.images[split] = len(store)
        if files and good == files:
            try:
                tfrecord_dataset.check_count(folder, split, len(store))
            except UserError as error:
                report.problems.append(str(error))
        report.problems += _all(store, len(names), decode, threads, split)
    return report


def _check(store: Store, index: int, classes: int, decode: bool) -> str | None:
    try:
        data, label, _, several = store.fetch(index)
    except UserError as error:
        return str(error)
    if classes and several is None and not 0 <= label < classes:
        return f"{store.name(index)}: class {label} of {classes}"
    problem = check_image(data) if decode else None
    return f"{store.name(index)}: {problem}" if problem else None


def _all(store: Store, classes: int, decode: bool, threads: int, label: str) -> list[str]:
    """The problems of the samples of `store`, in order, several checked at a time."""
    problems = mapped(
        lambda index: _check(store, index, classes, decode), range(len(store)), f"Verify {label}", threads=threads
    )
    return [problem for problem in problems if problem is not None]
