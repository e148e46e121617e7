"""What happens to an image before the network sees it, as plain numbers that travel with a model. No torch here."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from conveyor.errors import UserError, did_you_mean

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
IMAGENET_BYTE_MEAN = (123.68, 116.78, 103.94)
NORMALIZATIONS = ("imagenet", "cifar", "mean", "per-image", "unit", "none")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """Images arrive as 8-bit [N, height, width, channels]; the graph normalises them itself."""

    image_size: int
    channels: int = 3
    """Channels of the image that a caller sends."""
    in_channels: int = 3
    """Channels that the network takes; those beyond `channels` are zero."""
    normalization: str = "none"
    resize: int | None = None
    """Shorter side of a photograph before the central crop; none: the stored images already have `image_size`."""

    def __post_init__(self) -> None:
        if self.normalization not in NORMALIZATIONS:
            raise UserError(
                f"there is no normalisation {self.normalization!r}{did_you_mean(self.normalization, NORMALIZATIONS)}"
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of one image."""
        return (self.image_size, self.image_size, self.channels)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Preprocessing":
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in document.items() if name in names})


def affine(normalization: str, channels: int) -> tuple[list[float], list[float]]:
    """(scale, shift) per channel with normalised = scale * byte + shift; `per-image` has none and is refused.

    Three-channel constants are averaged for single-channel images.
    """
    if normalization == "none":
        return [1.0] * channels, [0.0] * channels
    if normalization == "unit":
        return [1 / 255] * channels, [0.0] * channels
    if normalization == "mean":
        return [1.0] * channels, [-value for value in _fit(IMAGENET_BYTE_MEAN, channels)]
    if normalization in ("imagenet", "cifar"):
        imagenet = normalization == "imagenet"
        mean = _fit(IMAGENET_MEAN if imagenet else CIFAR_MEAN, channels)
        std = _fit(IMAGENET_STD if imagenet else CIFAR_STD, channels)
        return [1 / (255 * s) for s in std], [-m / s for m, s in zip(mean, std, strict=True)]
    raise UserError(f"{normalization} is not the same factor for every image")


def _fit(values: tuple[float, ...], channels: int) -> list[float]:
    if channels == 1:
        return [sum(values) / len(values)]
    return [values[index % len(values)] for index in range(channels)]
