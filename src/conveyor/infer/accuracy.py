"""Real images of the data set a model was trained on, as its engine takes them, and the share it gets right."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from conveyor.data.identity import check_classes
from conveyor.errors import UserError
from conveyor.infer.engines.engine import Engine
from conveyor.infer.loaded import Loaded
from conveyor.infer.preprocessing import Preprocessing
from conveyor.options import Options

if TYPE_CHECKING:
    from conveyor.data.batch import Dataset


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """`images` uint8 [N, H, W, C] and their `labels`."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


def data_options(loaded: Loaded, data_dir: str | None = None) -> Options:
    """The options of a model with the folder of its data: the given one, else the run's own."""
    options = Options.from_mapping(loaded.spec.get("options", {}), where=loaded.name)
    folder = data_dir or loaded.data_dir
    return options if folder is None else options.replace(data_dir=folder)


def sample(
    options: Options, split: str, preprocessing: Preprocessing, count: int, class_names: Sequence[str] = ()
) -> Sample:
    """`count` images spread evenly over a split, cropped and resized as in validation; fewer when it has fewer.

    Data whose classes are not `class_names` are refused.
    """
    dataset = _dataset(options, split, preprocessing, class_names)
    chosen = np.unique(np.linspace(0, len(dataset) - 1, min(count, len(dataset))).astype(np.int64))
    return _read(dataset, chosen, preprocessing)


def in_order(loaded: Loaded, options: Options, size: int) -> Iterator[Sample]:
    """All validation images (at most `--max-validation-images`) in batches of `size`."""
    dataset = _dataset(options, "validation", loaded.preprocessing, loaded.class_names)
    count = min(len(dataset), options.data.max_validation_images or len(dataset))
    for start in range(0, count, size):
        yield _read(dataset, np.arange(start, min(start + size, count)), loaded.preprocessing)


def _dataset(options: Options, split: str, preprocessing: Preprocessing, class_names: Sequence[str]) -> "Dataset":
    from conveyor.data.open import open_dataset

    data = options.replace(
        train_crop="centre",
        progressive_image_size=(),
        crop_overlap=0,
        flip="none",
        augment="none",
        generated_data=False,
        synthetic_data=False,
    )
    try:
        dataset = open_dataset(data, split, preprocessing.image_size, preprocessing.channels)
    except UserError as error:
        raise UserError(f"real images are needed and cannot be had: {error}") from None
    check_classes(class_names, dataset.class_names)
    if not len(dataset):
        raise UserError(f"the data set has no {split} images: real ones are needed, give --data-dir")
    return dataset


def _read(dataset: "Dataset", chosen: NDArray[np.int64], preprocessing: Preprocessing) -> Sample:
    from conveyor.data.transform import geometry

    raw = dataset.read(chosen, 0)
    images = raw.images
    if tuple(images.shape[1:3]) != (preprocessing.image_size, preprocessing.image_size):
        images = geometry.resize(images, preprocessing.image_size).round().clamp(0, 255).byte()
    return Sample(np.ascontiguousarray(images.numpy()), raw.labels.numpy())


def answers(engine: Engine, parts: Iterable[Sample]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Logits [N, K] and labels [N] of all parts."""
    found = [(engine(part.images), part.labels) for part in parts]
    return np.concatenate([logits for logits, _ in found]), np.concatenate([labels for _, labels in found])


def top1(engine: Engine, data: Sample, batch: int = 32) -> float:
    """Percent of the images whose largest logit is the label's, or one of the labels'."""
    parts = (slice(start, start + batch) for start in range(0, len(data), batch))
    logits, labels = answers(engine, (Sample(data.images[part], data.labels[part]) for part in parts))
    best = logits.argmax(axis=1)
    right = best == labels if labels.ndim == 1 else labels[np.arange(len(labels)), best]
    return 100 * int(right.sum()) / len(data)
