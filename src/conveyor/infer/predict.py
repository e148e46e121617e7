"""Photographs to named results: files, folders, pictures and arrays, prepared as in validation. No torch here."""

import dataclasses
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from conveyor.data.formats.folders import IMAGE_SUFFIXES
from conveyor.data.photo.centre import central_box
from conveyor.data.photo.decode import BadImageError, Encoded
from conveyor.errors import UserError
from conveyor.files import read_regular, user_path
from conveyor.infer.loaded import Loaded
from conveyor.infer.preprocessing import Preprocessing
from conveyor.layout import usable_cores

BATCH = 16
Logits: TypeAlias = NDArray[np.float32]
Picture: TypeAlias = "str | Path | bytes | Image.Image | NDArray[np.uint8]"


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one image, or in `error` the reason why there is none."""

    file: str
    """Empty for what was no file."""
    label: str = ""
    probability: float = 0.0
    error: str = ""
    abstains: bool = False
    """The model is less sure than `abstain_below` of its export: the label is its guess, not its answer."""
    labels: tuple[str, ...] | None = None
    """Of a multi-label model: all classes above their thresholds, the most probable first."""
    _row: NDArray[np.float64] | None = dataclasses.field(default=None, repr=False, compare=False)
    """The probability of every class [K]: an array, as a tuple for each of 21,000 classes takes twenty times the memory."""
    _label: Callable[[int], str] = dataclasses.field(default=str, repr=False, compare=False)

    @property
    def ranked(self) -> tuple[tuple[str, float], ...]:
        """(class, probability) of all classes, most probable first."""
        return tuple(self.top(0 if self._row is None else len(self._row)))

    @property
    def probabilities(self) -> dict[str, float]:
        """The probability of every class by its name."""
        return dict(self.ranked)

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The `count` most probable classes and their probabilities."""
        row = self._row
        if row is None:
            return []
        return [(self._label(int(index)), float(row[index])) for index in np.argsort(-row, kind="stable")[:count]]

    def to_json(self, count: int = 5) -> dict[str, Any]:
        if self.error:
            return {"file": self.file, "error": self.error}
        top = [{"label": label, "probability": probability} for label, probability in self.top(count)]
        if self.labels is not None:
            known = self.probabilities
            named = [{"label": label, "probability": known[label]} for label in self.labels]
            return {"file": self.file, "labels": named, "top": top}
        found = {"file": self.file, "label": self.label, "probability": self.probability, "top": top}
        return {**found, "abstains": True} if self.abstains else found


def find_files(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """The files that paths, folders (all images below them, by name) and patterns such as `*.jpg` mean, each once."""
    found: dict[str, None] = {}
    for given in paths:
        if isinstance(given, str) and given.startswith(("http://", "https://")):
            raise UserError(f"{given} is no file: fetch it first, as by curl {given} | conveyor predict MODEL -")
        path = user_path(given)
        if path.is_dir():
            inside = sorted(_images_below(path))
            if not inside:
                raise UserError(
                    f"there is no image in {path}: files ending in {', '.join(IMAGE_SUFFIXES)} are looked for"
                )
            found |= dict.fromkeys(inside)
        elif path.exists():
            found[str(path)] = None
        else:
            matched = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - of absolute patterns too
            if not matched:
                raise UserError(f"there is no file {given}: give image files, folders or patterns such as '*.jpg'")
            found |= dict.fromkeys(find_files(matched))
    return list(found)


def _images_below(folder: Path) -> Iterator[str]:
    """As text: path objects for a million files take seconds."""
    for current, _, names in os.walk(folder):
        prefix = str(Path(current) / "_")[:-1]
        yield from (f"{prefix}{name}" for name in names if name[1:].lower().endswith(IMAGE_SUFFIXES))


def predictions(
    pictures: Sequence[tuple[str, Picture]],
    model: Loaded,
    run: Callable[[NDArray[np.uint8]], Logits],
    batch: int = BATCH,
) -> Iterator[Prediction]:
    """One result for each (name, picture), in their order; `run` gives logits [N, classes] of uint8 [N, H, W, C].

    A picture that cannot be read is a result with an `error`; the others are answered all the same.
    """
    with ThreadPoolExecutor(usable_cores()) as readers:
        for start in range(0, len(pictures), batch):
            part = pictures[start : start + batch]
            read = list(readers.map(lambda one: _read(one[1], model.preprocessing), part))
            pixels = [one for one in read if isinstance(one, np.ndarray)]
            rows = iter(probabilities(run(np.stack(pixels)), several=model.thresholds is not None) if pixels else ())
            for (name, _), one in zip(part, read, strict=True):
                yield Prediction(name, error=one) if isinstance(one, str) else _named(name, next(rows), model)


def _read(picture: Picture, preprocessing: Preprocessing) -> NDArray[np.uint8] | str:
    """The pixels, or why there are none."""
    try:
        return pixels_of(_opened(picture), preprocessing)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except BadImageError as error:
        return str(error)


def pixels_of(image: Encoded, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """uint8 [H, W, C]: upright, the central crop, resized; raises `BadImageError`."""
    out = np.empty(preprocessing.image_shape, np.uint8)
    share = preprocessing.image_size / (preprocessing.resize or preprocessing.image_size)
    box = central_box(image.height, image.width, share)
    image.crop_into(out, box, bicubic=preprocessing.interpolation == "bicubic")
    return out


def _opened(picture: Picture) -> Encoded:
    if isinstance(picture, bytes):
        return Encoded(picture)
    if isinstance(picture, str | os.PathLike):
        return Encoded(read_regular(picture))
    return Encoded.of_picture(picture if isinstance(picture, Image.Image) else Image.fromarray(picture))


def images_of(array: NDArray[Any]) -> list[NDArray[np.uint8]]:
    """The images in an 8-bit array [H, W], [H, W, C] or [N, H, W, C] of 1, 3 or 4 channels, as Pillow takes them."""
    shape = " x ".join(str(size) for size in array.shape)
    if array.dtype != np.uint8:
        raise UserError(f"images must be 8-bit values (uint8, 0 to 255), not {array.dtype}: convert them first")
    many = array if array.ndim == 4 else array[None]
    if many.ndim == 4 and many.shape[3] == 1:
        many = many[..., 0]
    if 0 in array.shape or many.ndim not in (3, 4) or (many.ndim == 4 and many.shape[3] not in (3, 4)):
        raise UserError(
            f"an array of {shape} is no image: give [H, W, C], [H, W] or [N, H, W, C] with 1, 3 or 4 channels"
        )
    return list(many)


def probabilities(logits: Logits, *, several: bool = False) -> NDArray[np.float64]:
    """softmax of each row, or with `several` labels for each image 1 / (1 + exp(-x)) of each logit."""
    if several:
        return np.asarray(0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64))))
    powers = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def above(row: NDArray[np.floating[Any]], thresholds: Sequence[float]) -> list[int]:
    """The classes that are at least as probable as their thresholds, the most probable first."""
    return [int(index) for index in np.argsort(-row, kind="stable") if row[index] >= thresholds[index]]


def _named(name: str, row: NDArray[np.float64], model: Loaded) -> Prediction:
    best = int(np.argsort(-row, kind="stable")[0])
    probability, thresholds = float(row[best]), model.thresholds
    labels = None if thresholds is None else tuple(model.label(index) for index in above(row, thresholds))
    abstains = probability < model.abstain_below
    return Prediction(
        name, model.label(best), probability, abstains=abstains, labels=labels, _row=row, _label=model.label
    )
