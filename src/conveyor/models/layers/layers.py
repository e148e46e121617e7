"""Small parts that several families share."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """A residual (or fire) block: what `models.blocks` lists and recomputation by block takes as its unit."""


class _SpatialMean(torch.autograd.Function):
    """Mean over height and width whose gradient is returned as a broadcast view.

    torch's own would write it out in NCHW order, and all layers before would then work on the wrong memory format.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, keepdim: bool) -> Tensor:
        ctx.shape = x.shape
        return x.mean((2, 3), keepdim=keepdim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        batch, channels, height, width = ctx.shape
        share = gradients[0].reshape(batch, channels, 1, 1) / (height * width)
        return share.expand(ctx.shape), None


class GlobalMean(nn.Module):
    """Mean over height and width: [N, C, H, W] to [N, C], or [N, C, 1, 1] with `keepdim`."""

    def __init__(self, keepdim: bool = False) -> None:
        super().__init__()
        self.keepdim = keepdim

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            return cast(Tensor, _SpatialMean.apply(x, self.keepdim))
        return x.mean((2, 3), keepdim=self.keepdim)


class _PaddedSubsample(torch.autograd.Function):
    """One write of the result, one of the gradient, both in the input's memory format.

    Slicing and padding by autograd would go through two strided intermediates on the way back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int, out_channels: int) -> Tensor:
        ctx.shape, ctx.stride = x.shape, stride
        picked = x[:, :, ::stride, ::stride]
        batch, channels, height, width = picked.shape
        ctx.memory_format = _memory_format(x)
        out = _zeros(x, (batch, out_channels, height, width), ctx.memory_format)
        out[:, :channels] = picked
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradients[0]
        out = _zeros(gradient, ctx.shape, ctx.memory_format)
        out[:, :, :: ctx.stride, :: ctx.stride] = gradient[:, : ctx.shape[1]]
        return out, None, None


def _memory_format(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format


def _zeros(like: Tensor, shape: Sequence[int], memory_format: torch.memory_format) -> Tensor:
    made = torch.empty(tuple(shape), dtype=like.dtype, device=like.device, memory_format=memory_format)
    return made.zero_()


class PaddedShortcut(nn.Module):
    """Shortcut A: every `stride`-th pixel, and zeros for the channels that x does not have (at the end).

    No parameters. Leading output channels equal x[:, :, ::stride, ::stride].
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.in_channels, self.out_channels = in_channels, out_channels

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            return cast(Tensor, _PaddedSubsample.apply(x, self.stride, self.out_channels))
        picked = x[:, :, :: self.stride, :: self.stride]
        return F.pad(picked, (0, 0, 0, 0, 0, self.out_channels - self.in_channels))

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, stride={self.stride}"


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
