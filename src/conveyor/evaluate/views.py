"""Test-time augmentation: the mean answer to several views of an image."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Views(nn.Module):
    """`model` on views of its input; the logits are averaged.

    mirror: the image and its mirror image. mirror-shift: half of the weight for these two, half for the same two moved by
    one pixel up and left and by one down and right, the border reflected.
    """

    def __init__(self, model: nn.Module, kind: str) -> None:
        super().__init__()
        self.model, self.kind = model, kind

    def forward(self, images: Tensor) -> Tensor:
        """[N, C, H, W] to the mean logits [N, classes]."""
        centre = self._mirrored(images)
        if self.kind == "mirror":
            return centre
        height, width = images.shape[-2:]
        padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
        moved = [padded[..., start : start + height, start : start + width] for start in (0, 2)]
        corners = [self._mirrored(one.contiguous(memory_format=torch.channels_last)) for one in moved]
        return centre / 2 + (corners[0] + corners[1]) / 4

    def _mirrored(self, images: Tensor) -> Tensor:
        return (self._answer(images) + self._answer(images.flip(-1))) / 2

    def _answer(self, images: Tensor) -> Tensor:
        logits = self.model(images)
        assert isinstance(logits, Tensor)
        return logits
