"""From options to a data set that can be read."""

from collections.abc import Callable

from conveyor.data import catalogue
from conveyor.data.batch import Dataset
from conveyor.data.catalogue import DatasetInfo
from conveyor.data.memory import GeneratedDataset, MemoryDataset, Pixels, SyntheticDataset, embedded_digits
from conveyor.errors import UserError
from conveyor.options import Options

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
    size = image_size or options.model.image_size or info.image_size
    depth = channels or info.channels
    if options.data.synthetic_data:
        return SyntheticDataset(info, count, info.channels)
    if options.data.generated_data:
        return GeneratedDataset(
            info, count, size if info.kind == "files" else info.image_size, info.channels, options.run.seed
        )
    if info.name in _openers:
        return _openers[info.name](options, split, size, depth)
    if info.name == "digits":
        return _memory(info, *embedded_digits(split)).limited(count)
    raise UserError(f"the data set {info.name} is known but cannot be opened: register an opener for it")


def _memory(info: DatasetInfo, images: Pixels, labels: Pixels) -> MemoryDataset:
    return MemoryDataset(images, labels, info.num_classes, info.class_names)
