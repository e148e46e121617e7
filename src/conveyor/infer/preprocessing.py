"""What happens to an image before the network sees it, as plain numbers that travel with a model. No torch here."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from conveyor.errors import UserError, did_you_mean

NORMALIZATIONS = ("imagenet", "cifar", "mean", "centred", "per-image", "unit", "none")


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
