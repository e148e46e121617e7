"""What is known of each data set before a single file is read: sizes, classes and the usual transforms.

Nothing here imports torch, so that `--dry-run`, `--help` and the planner start fast.
"""

import dataclasses
import os
import re
from pathlib import Path

from conveyor.data.formats import divide, folders, lists, locate, packed, tfrecord_dataset
from conveyor.data.formats.boxes import CSV_NAME, has_boxes
from conveyor.data.formats.sources import SOURCES
from conveyor.errors import UserError, did_you_mean
from conveyor.models import user_module
from conveyor.options.data import DataOptions
from conveyor.remote.data import data_folder

DIGIT_NAMES = tuple(str(digit) for digit in range(10))
FASHION_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """The numbers of a data set; `train_images` and `validation_images` are those that a run uses."""

    name: str
    train_images: int
    validation_images: int
    num_classes: int
    image_size: int
    """Height and width of the stored images, or the usual crop when they vary."""
    channels: int
    kind: str = "memory"
    """`memory`: fixed-size images held as one array; `files`: encoded images of any size; `none`: no files at all."""
    default_normalization: str = "unit"
    default_crop: str = "none"
    default_flip: str = "none"
    default_epochs: int = 10
    class_names: tuple[str, ...] = ()
    title: str = ""

    def with_limits(self, options: DataOptions) -> "DatasetInfo":
        """The same set after `--data-percentage`, `--max-train-images` and `--max-validation-images`."""
        train = max(1, int(self.train_images * options.data_percentage / 100)) if self.train_images else 0
        return dataclasses.replace(
            self,
            train_images=min(train, options.max_train_images or train),
            validation_images=min(self.validation_images, options.max_validation_images or self.validation_images),
        )


_GREY = DatasetInfo(name="", train_images=60_000, validation_images=10_000, num_classes=10, image_size=28, channels=1)
_CIFAR = dataclasses.replace(
    _GREY,
    train_images=50_000,
    image_size=32,
    channels=3,
    default_normalization="cifar",
    default_crop="pad",
    default_flip="random",
    default_epochs=50,
)
_PHOTOGRAPHS = dataclasses.replace(
    _CIFAR, image_size=224, kind="files", default_normalization="imagenet", default_crop="resized", default_epochs=90
)

_KNOWN = {
    name: dataclasses.replace(base, name=name, title=title, **different)
    for name, title, base, different in (
        (
            "digits",
            "UCI handwritten digits, embedded in the package",
            _GREY,
            {
                "train_images": 1437,
                "validation_images": 360,
                "image_size": 8,
                "default_epochs": 20,
                "class_names": DIGIT_NAMES,
            },
        ),
        ("mnist", "MNIST handwritten digits", _GREY, {"class_names": DIGIT_NAMES}),
        ("fashion-mnist", "Fashion-MNIST", _GREY, {"default_epochs": 15, "class_names": FASHION_NAMES}),
        ("cifar10", "CIFAR-10", _CIFAR, {"class_names": CIFAR10_NAMES}),
        ("cifar100", "CIFAR-100 (fine labels)", _CIFAR, {"num_classes": 100}),
        (
            "imagenet",
            "ImageNet LSVRC 2012, class folders or TFRecord",
            _PHOTOGRAPHS,
            {"train_images": 1_281_167, "validation_images": 50_000, "num_classes": 1000},
        ),
    )
}
_ALIASES = {
    "cifar-10": "cifar10",
    "cifar-100": "cifar100",
    "fashionmnist": "fashion-mnist",
    "fashion": "fashion-mnist",
    "imagenet2012": "imagenet",
}
MADE_UP_IMAGES = 64
"""Different images that generated data consist of; a data set of them repeats these."""
RANDOM_CROPS = ("resized", "distorted", "resize-resized")
"""Values of `--train-crop` that draw a part of a photograph."""
_registered: dict[str, DatasetInfo] = {}


def known() -> dict[str, DatasetInfo]:
    """All data sets that have a name: the shipped ones and those added with `register`."""
    return {**_KNOWN, **_registered}


def register(info: DatasetInfo) -> None:
    """Make `info.name` a value of `--data`; `data.open_dataset` finds its opener in `data.open.register_opener`."""
    _registered[info.name] = info


def canonical_name(name: str) -> str:
    """`CIFAR-10` -> `cifar10`; unknown names give an error with the nearest known one."""
    lowered = name.lower().replace("_", "-")
    lowered = _ALIASES.get(lowered, lowered)
    if lowered == "folder" or lowered in known():
        return lowered
    raise UserError(f"there is no data set called {name!r}{did_you_mean(name, [*known(), 'folder'])}")


def data_dir(options: DataOptions) -> Path | None:
    """The folder that was asked for: `--data-dir`, else the variable DATA_DIR."""
    text = options.data_dir or os.environ.get("DATA_DIR")
    return data_folder(text) if text else None


def is_code(name: str | None) -> bool:
    """Whether `name` is code of the user's own, FILE.py:NAME."""
    return name is not None and ":" in name


def name_of(options: DataOptions) -> str:
    """The data set's name: as given, else guessed from the words in the folder's path, else the embedded digits."""
    if options.data and is_code(options.data):
        return user_module.full_name(options.data)
    if options.data:
        return canonical_name(options.data)
    folder = data_dir(options)
    if folder is None:
        return "digits"
    if lists.find(folder):
        return "folder"
    text = str(folder).lower()
    for words, name in (
        (("imagenet",), "imagenet"),
        (("cifar100", "cifar-100"), "cifar100"),
        (("cifar",), "cifar10"),
        (("fashion",), "fashion-mnist"),
        (("mnist",), "mnist"),
    ):
        if any(word in text for word in words) and not _holds_others(folder, name):
            return name
    if not folder.is_dir():
        raise folders.missing(folder)
    if tfrecord_dataset.find_folder(folder) is not None or folders.split_folder(folder, "train") is not None:
        return "folder"
    if folders.is_plain(folder) or packed.find(folder):
        return "folder"
    raise UserError(
        f"{folder} does not say which data set it holds: name it with --data, "
        "or give a folder with one folder of images per class, or with train/ and validation/ (or val/) that hold those"
    )


def _holds_others(folder: Path, name: str) -> bool:
    """Whether a folder with `name` in its path has class folders and no copy of that set: mnist-work/photos, say.

    Class folders without train/ and val/ are ImageNet's, and all for validation, if they are called as its classes are.
    """
    if name not in SOURCES:
        return folders.is_plain(folder) and not any(re.fullmatch(r"n\d{8}", one.name) for one in folder.iterdir())
    return (folders.has_images(folder) or bool(packed.find(folder))) and locate.search(name, folder) is None


def info(options: DataOptions) -> DatasetInfo:
    """The numbers of the data set that `options` choose; only image folders are read from the disk."""
    name = name_of(options)
    if (options.fold or 0) >= (options.folds or 1):
        raise UserError(
            f"--fold {options.fold} of --folds {options.folds}: give one from 0 to N - 1"
            if options.folds
            else f"--fold {options.fold} has no effect without --folds N"
        )
    if is_code(name):
        from conveyor.data.user_data import from_code  # imports torch

        check_own(options)
        return from_code(name, options.multi_label)[0].with_limits(options)
    if name != "folder":
        found = _found(options)
        made_up = options.generated_data or options.synthetic_data
        if found.kind == "memory" and not made_up and (picks := divide.in_memory(_counts(found), options)) is not None:
            train, validation = (len(picks[split][1]) for split in ("train", "validation"))
            found = dataclasses.replace(found, train_images=train, validation_images=validation)
        return found.with_limits(options)
    folder = data_dir(options)
    if folder is None:
        raise UserError("--data folder needs --data-dir: a folder with one folder of images per class")
    if not folder.is_dir() and not lists.find(folder):
        raise folders.missing(folder)
    return _as_on_disk(
        dataclasses.replace(_PHOTOGRAPHS, name="folder", title=f"images in {folder.name}"), folder, options
    ).with_limits(options)


def check_own(options: DataOptions) -> None:
    """Refuse to divide data of the user's own: its images have no names."""
    asked = {"--folds": options.folds, "--group-by": options.group_by, "--exclude-images": options.exclude_images}
    given = [flag for flag, value in asked.items() if value is not None]
    if given:
        raise UserError(
            f"{given[0]} cannot divide data of your own: give the (training, validation) that it would make"
        )


def _found(options: DataOptions) -> DatasetInfo:
    """A named set as its files are, before anything is taken away."""
    found = known()[name_of(options)]
    if found.name == "imagenet" and not (options.generated_data or options.synthetic_data):
        return _as_on_disk(found, data_dir(options), options)
    return _counted(found, options) if found.name in SOURCES else found


def _counts(found: DatasetInfo) -> dict[str, int]:
    return {"train": found.train_images, "validation": found.validation_images}


def whole_counts(options: DataOptions) -> dict[str, int]:
    """Images of each split of a set in memory, before --folds, --exclude-images and the limits."""
    return _counts(_found(options))


def hold_out(options: DataOptions, found: DatasetInfo) -> float:
    """The share of class folders without splits that is for validation."""
    return 1.0 if found.name == "imagenet" else options.hold_out


def check_crop_overlap(options: DataOptions, found: DatasetInfo) -> None:
    """Refuse `--crop-overlap` where it has no effect; generated images are not cropped at all."""
    if not options.crop_overlap or options.generated_data or options.synthetic_data:
        return
    crop, folder = options.train_crop or found.default_crop, data_dir(options)
    if found.kind != "files":
        raise UserError(
            f"the images of {found.name} have no bounding boxes for --crop-overlap: leave it out, or give 0"
        )
    if crop not in RANDOM_CROPS:
        raise UserError(
            f"--crop-overlap chooses among random crops: give --train-crop {' or '.join(RANDOM_CROPS)} instead of {crop}, "
            "or --crop-overlap 0"
        )
    if folder is not None and folder.is_dir() and not has_boxes(folder):
        raise UserError(
            f"{folder} has no bounding boxes for --crop-overlap: put {CSV_NAME} beside train/ (TFRecord: build the files "
            "with --bounding-boxes), or give --crop-overlap 0"
        )


def _counted(found: DatasetInfo, options: DataOptions) -> DatasetInfo:
    """`found` with the number of images in the named folder's files: a truncated copy counts what it holds."""
    folder = data_dir(options)
    if folder is None or options.generated_data or options.synthetic_data:
        return found
    copy = locate.search(found.name, folder)
    counts = locate.count_images(copy) if copy is not None else None
    if counts is None:
        return found
    return dataclasses.replace(found, train_images=counts["train"], validation_images=counts["validation"])


def _as_on_disk(base: DatasetInfo, folder: Path | None, options: DataOptions) -> DatasetInfo:
    """`base` with the folder's own counts and classes, as ImageNet may be a subset; unchanged without files."""
    if folder is None or not folder.exists():
        return base
    records = divide.records_folder(folder)
    if records is not None:
        if options.folds or options.group_by or options.exclude_images:
            raise UserError(
                "--folds, --group-by and --exclude-images need images with names, and TFRecord files have none: give the "
                "class folders or a list of files"
            )
        standard = tfrecord_dataset.Summary(base.train_images, base.validation_images, base.class_names)
        found = tfrecord_dataset.summary(records, standard if base.name == "imagenet" else None)
        classes, train, validation = found.classes, found.train_images, found.validation_images
        if not classes and base.name != "imagenet":
            raise UserError(f"{records} does not say its classes: put their names into labels.txt, one per line")
    elif base.name == "imagenet" and not divide.is_listed(folder) and folders.split_folder(folder, "train") is None:
        return base
    else:
        listing = divide.listing(folder, options, hold_out(options, base))
        classes, train, validation = listing.classes, listing.count("train"), listing.count("validation")
    return dataclasses.replace(
        base,
        train_images=train,
        validation_images=validation,
        num_classes=len(classes) or base.num_classes,
        class_names=classes,
    )
