"""The preparation of an image for the network, as plain numbers that are stored with a model. No torch here."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from conveyor.errors import UserError, did_you_mean
from conveyor.options.data import INTERPOLATIONS
from conveyor.options.units import normalization

LARGEST_SIDE = 1 << 14


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
    interpolation: str = "bilinear"
    """How a photograph is resized: bilinear or bicubic."""

    def __post_init__(self) -> None:
        numbers = [self.image_size, self.channels, self.in_channels, *([] if self.resize is None else [self.resize])]
        if not all(type(number) is int and 0 < number <= LARGEST_SIDE for number in numbers):
            raise UserError(f"the preprocessing of the model holds impossible numbers: {str(numbers)[:100]}")
        normalization(str(self.normalization))
        if self.interpolation not in INTERPOLATIONS:
            hint = did_you_mean(str(self.interpolation)[:100], INTERPOLATIONS)
            raise UserError(f"there is no interpolation {str(self.interpolation)[:100]!r}{hint}")

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
