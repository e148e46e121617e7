"""Small parts that several families share."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """A residual (or fire) block: what `models.blocks` lists and recomputation by block takes as its unit."""


class GlobalMean(nn.Module):
    """Mean over height and width: [N, C, H, W] to [N, C]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class PaddedShortcut(nn.Module):
    """Shortcut A: every `stride`-th pixel, and zeros for the channels that x does not have (at the end).

    No parameters. Leading output channels equal x[:, :, ::stride, ::stride].
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.extra_channels = out_channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, 0, self.extra_channels))

    def extra_repr(self) -> str:
        return f"stride={self.stride}, extra_channels={self.extra_channels}"


def conv(
    in_channels: int,
    out_channels: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    bias: bool = False,
    **more: Any,
) -> nn.Conv2d:
    """A convolution with symmetric padding kernel // 2, so that stride 1 keeps the image size."""
    return nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=bias, **more)
