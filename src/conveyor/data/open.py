"""From options to a data set that can be read."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from conveyor.data import catalogue
from conveyor.data.batch import Dataset
from conveyor.data.catalogue import DatasetInfo
from conveyor.data.formats import cifar, divide, locate, tfds, tfrecord_dataset
from conveyor.data.formats.acquire import obtain
from conveyor.data.formats.boxes import CSV_NAME, read_boxes
from conveyor.data.formats.idx import read_idx
from conveyor.data.formats.locate import Copy
from conveyor.data.formats.memory import GeneratedDataset, MemoryDataset, Pixels, SyntheticDataset, embedded_digits
from conveyor.data.formats.stores import FolderStore, PackedStore, RecordStore, with_cache
from conveyor.data.photo.encoded import EncodedDataset
from conveyor.data.subject import subject
from conveyor.data.user_data import first, from_code
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.options.data import DataOptions

Opener = Callable[[Options, str, int, int], Dataset]
"""`opener(options, split, image_size, channels)`; split is `train` or `validation`."""

_openers: dict[str, Opener] = {}


def register_opener(name: str, opener: Opener) -> None:
    """Say how the data set `name`, known to `catalogue.register`, is opened."""
    _openers[name] = opener


def open_dataset(options: Options, split: str, image_size: int | None = None, channels: int | None = None) -> Dataset:
    """The data set that `options` choose, `split` being `train` or `validation`.

    `image_size` and `channels` are those of the network; sets of fixed-size images ignore them, since `Prepare` resizes
    on the device. Known small sets that are missing are fetched unless `--no-download` forbids it.
    """
    if split not in ("train", "validation"):
        raise ValueError(f"split is train or validation, not {split!r}")
    info = catalogue.info(options.data)
    count = info.train_images if split == "train" else info.validation_images
    about = subject(options, info)
    size, depth = image_size or about.image_size, channels or about.channels
    if options.data.synthetic_data:
        return SyntheticDataset(info, count)
    if options.data.generated_data:
        return GeneratedDataset(
            info, count, size if info.kind == "files" else info.image_size, info.channels, options.run.seed
        ).with_sets(options.data.multi_label)
    if catalogue.is_code(info.name):
        _, train, validation = from_code(info.name, options.data.multi_label)
        part = train if split == "train" else validation
        if part is None:
            raise UserError(f"{info.name} has no images to validate on: give (training, validation)")
        return first(part, count)
    if info.name in _openers:
        return _openers[info.name](options, split, size, depth)
    if info.kind == "memory":
        return _open_memory(info, options, split).limited(count).with_sets(options.data.multi_label)
    if info.kind == "files":
        return _open_files(info, options, split, size, depth, count)
    raise UserError(f"the data set {info.name} is known but cannot be opened: register an opener for it")


def _open_memory(info: DatasetInfo, options: Options, split: str) -> MemoryDataset:
    stated = catalogue.whole_counts(options.data)
    picks = divide.in_memory(stated, options.data)
    source, numbers = (split, None) if picks is None else picks[split]
    if info.name == "digits":
        (images, labels), names = embedded_digits(source), info.class_names
    else:
        copy = obtain(info.name, options.data)
        images, labels = read_copy(copy, source)
        names = info.class_names or cifar.class_names(copy.folder)
        if len(images) != stated[source] and locate.count_images(copy) is None:
            raise UserError(
                f"{copy.folder} has {len(images)} images for {source} instead of {stated[source]}: fetch {info.name} again"
            )
    if numbers is not None:
        images, labels = images[np.array(numbers, np.int64)], labels[np.array(numbers, np.int64)]
    found = MemoryDataset(images, labels, info.num_classes, names)
    found.source = source, numbers
    return found


def _open_files(
    info: DatasetInfo, options: Options, split: str, image_size: int, channels: int, count: int
) -> EncodedDataset:
    folder = catalogue.data_dir(options.data)
    if folder is None:
        raise UserError(f"{info.name} needs its files: name their folder with --data-dir or the variable DATA_DIR")
    steered = split == "train" and options.data.crop_overlap > 0
    if steered:
        catalogue.check_crop_overlap(options.data, info)
    hold_out = catalogue.hold_out(options.data, info)
    store = with_cache(open_store(folder, split, options.data, hold_out, boxes=steered), options.data.data_cache)
    return EncodedDataset(
        store,
        options.data,
        train=split == "train",
        crop=options.data.train_crop or info.default_crop,
        image_size=image_size,
        channels=channels,
        num_classes=info.num_classes,
        class_names=info.class_names,
        seed=options.run.seed,
        count=count,
        multi_label=options.data.multi_label,
    )


def open_store(
    folder: Path, split: str, options: DataOptions, hold_out: float = 1.0, *, boxes: bool = False
) -> FolderStore | PackedStore | RecordStore:
    """The encoded images below `folder`: TFRecord, tar or parquet files, class folders or a list of files (see `divide.listing`).

    With `boxes`, each comes with those of the objects in it.
    """
    records = divide.records_folder(folder)
    if records is None:
        listing = divide.listing(folder, options, hold_out)
        if not options.multi_label and any(len(classes) != 1 for classes in listing.label_sets.get(split, ())):
            raise UserError(f"some images of {folder} have several classes or none: add --task multi-label")
        if listing.packs:
            return PackedStore(listing, split)
        return FolderStore(listing, split, read_boxes(folder / CSV_NAME) if boxes else None)
    files = tfrecord_dataset.record_files(records, split)
    if not files:
        raise UserError(f"{records} has no TFRecord files for {split}")
    store = RecordStore(files, boxes)
    tfrecord_dataset.check_count(records, split, len(store))
    return store


def read_copy(copy: Copy, split: str) -> tuple[Pixels, Pixels]:
    """Images uint8 [N, H, W, C] and labels uint8 [N] of a small data set's files."""
    train = split == "train"
    if copy.layout == "tfds":
        return tfds.read_small(copy.source.name, copy.files, split)
    if copy.source.name in ("mnist", "fashion-mnist"):
        prefix = "train" if train else "t10k"
        images, labels = (read_idx(copy.files[f"{prefix}-{kind}-ubyte"]) for kind in ("images-idx3", "labels-idx1"))
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise UserError(
                f"{copy.folder} has {len(images)} images and {len(labels)} labels of {split}: fetch it again"
            )
        return images[..., None], labels
    chosen = [path for name, path in copy.files.items() if name.startswith("test") != train]
    label_bytes = 2 if copy.source.name == "cifar100" else 1
    parts = [
        cifar.read_binary(path, label_bytes) if copy.layout == "plain" else cifar.read_python(path) for path in chosen
    ]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])
