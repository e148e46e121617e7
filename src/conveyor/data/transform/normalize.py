"""Normalisation of 8-bit images as one multiply-add: y = x * scale + shift, per channel, on NHWC data."""

import dataclasses
import functools

import torch
from torch import Tensor

from conveyor.options.units import normalization

MEANS_AND_DEVIATIONS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
}
"""Of x / 255."""
CHANNEL_MEANS = (123.68, 116.78, 103.94)
"""Of x in 0..255, for `mean`."""
LUMA = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in grey."""


@dataclasses.dataclass(frozen=True, slots=True)
class Normalization:
    """`scale` and `shift` per channel, or `per_image` standardisation.

    imagenet, cifar, numbers: (x/255 - mean)/std, so scale = 1/(255 std), shift = -mean/std. mean: x - channel mean.
    centred: (x - 127)/128, suited to 8-bit arithmetic: EfficientNet-Lite was trained so. unit: x/255. none: x.
    per-image: (x - m)/max(s, 1/sqrt(n)) with mean m, deviation s and number n of the image's values; the floor keeps a
    uniform image finite.
    """

    scale: tuple[float, ...]
    shift: tuple[float, ...]
    per_image: bool = False

    @classmethod
    def named(cls, name: str, channels: int) -> "Normalization":
        if name == "per-image":
            return cls((1.0,) * channels, (0.0,) * channels, per_image=True)
        if name in MEANS_AND_DEVIATIONS or "/" in name:
            numbers = MEANS_AND_DEVIATIONS[name] if name in MEANS_AND_DEVIATIONS else normalization(name)
            means, deviations = (_fit(tuple(values), channels) for values in numbers)  # type: ignore[arg-type]
            scale = tuple(1 / (255 * d) for d in deviations)
            return cls(scale, tuple(-m / d for m, d in zip(means, deviations, strict=True)))
        if name == "mean":
            return cls((1.0,) * channels, tuple(-m for m in _fit(CHANNEL_MEANS, channels)))
        if name == "centred":
            return cls((1 / 128,) * channels, (-127 / 128,) * channels)
        if name == "unit":
            return cls((1 / 255,) * channels, (0.0,) * channels)
        if name == "none":
            return cls((1.0,) * channels, (0.0,) * channels)
        raise ValueError(f"unknown normalisation {name!r}")

    def __call__(self, images: Tensor) -> Tensor:
        """float32 [B, H, W, C] from [B, H, W, C] of any type; padding and crops with other data belong before this."""
        if self.per_image:
            return standardize(images)
        batch, height, width, channels = images.shape
        # Rows of width*channels values keep the inner loop long and vectorised; a last dimension of 3 would not.
        scale, shift = row_of(self.scale, width, images.device), row_of(self.shift, width, images.device)
        rows = images.reshape(batch * height, width * channels).to(torch.float32)
        if rows.data_ptr() == images.data_ptr():
            rows = rows.clone()
        return rows.mul_(scale).add_(shift).view(batch, height, width, channels)

    def undone(self, images: Tensor) -> Tensor:
        """uint8 [B, H, W, C] to look at, from normalised values; standardised images fill 0..255."""
        if self.per_image:
            low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
            pixels = 255 * (images - low) / (high - low).clamp_min(1e-12)
        else:
            pixels = (images - images.new_tensor(self.shift)) / images.new_tensor(self.scale)
        return pixels.round().clamp(0, 255).to(torch.uint8)


@functools.lru_cache(maxsize=64)
def row_of(values: tuple[float, ...], width: int, device: torch.device) -> Tensor:
    """`values` (one per channel) once for each pixel of a row: float32 [width * channels]."""
    return torch.tensor(values, dtype=torch.float32).repeat(width).to(device)


def standardize(images: Tensor) -> Tensor:
    """Zero mean and unit deviation for each image, float32."""
    flat = images.reshape(len(images), -1).to(torch.float32)
    if flat.shape[1] == 0:
        return flat.view(images.shape)
    deviation, mean = torch.std_mean(flat, dim=1, correction=0, keepdim=True)
    floor = flat.shape[1] ** -0.5
    return ((flat - mean) / deviation.clamp_min(floor)).view(images.shape)


def _fit(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Values for three colours on grey images (weighted like luminance) or on more channels (the mean of the three)."""
    if channels == len(values):
        return values
    if channels == 1:
        return (sum(weight * value for weight, value in zip(LUMA, values, strict=True)),)
    return (values + (sum(values) / len(values),) * channels)[:channels]
