"""Convolutions with padding and groups that the plain ones do not have."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """(before, after) such that the output has ceil(size / stride) pixels; an odd pixel goes behind (TensorFlow)."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class SameConv(nn.Conv2d):
    """A convolution with TensorFlow's SAME padding: one row or column more behind than before if the sum is odd.

    Only a strided convolution on an even image really pads; all others use the kernel's own symmetric padding.
    """

    def forward(self, x: Tensor) -> Tensor:
        top, bottom = same_padding(x.shape[2], self.kernel_size[0], self.stride[0])
        left, right = same_padding(x.shape[3], self.kernel_size[1], self.stride[1])
        if top == bottom and left == right:
            return F.conv2d(x, self.weight, self.bias, self.stride, (top, left), self.dilation, self.groups)
        padded = F.pad(x, (left, right, top, bottom))
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def windows(channels: int, group_dim: int) -> tuple[int, int]:
    """(number of groups, input channels of each) for groups of about `group_dim` channels.

    groups = max(channels // group_dim, 1) of channels // groups each, if that divides. If it does not (56 channels in
    groups of 16: 3 groups of 18, 2 channels over), the width of a group is kept, so that the number of weights is
    channels x (channels // groups) x kernel area as by the plain formula, and the number of groups is the smallest
    divisor of `channels` whose windows cover all of them (4 windows of 18, overlapping).
    """
    groups = max(channels // group_dim, 1)
    width = channels // groups
    while channels % groups or groups * width < channels:
        groups += 1
    return groups, width


class WindowedConv(SameConv):
    """A grouped convolution whose groups see overlapping windows of the input channels, evenly spread.

    Group g of n sees `width` channels from round(g * (channels - width) / (n - 1)) on.
    """

    index: Tensor

    def __init__(
        self, channels: int, groups: int, width: int, kernel: int, stride: int, bias: bool, same: bool
    ) -> None:
        super().__init__(groups * width, channels, kernel, stride, kernel // 2, groups=groups, bias=bias)
        starts = [round(group * (channels - width) / (groups - 1)) for group in range(groups)]
        index = torch.tensor([start + step for start in starts for step in range(width)])
        self.register_buffer("index", index, persistent=False)
        self.symmetric = not same

    def forward(self, x: Tensor) -> Tensor:
        gathered = x.index_select(1, self.index)
        return self._conv_forward(gathered, self.weight, self.bias) if self.symmetric else super().forward(gathered)


def spatial_conv(
    in_channels: int, out_channels: int, kernel: int, stride: int, *, group_dim: int | None, bias: bool, same: bool
) -> nn.Conv2d:
    """A k x k convolution; grouped with about `group_dim` channels per group unless that is None."""
    groups = 1
    if group_dim is not None:
        groups, width = windows(in_channels, group_dim)
        if groups * width != in_channels:
            return WindowedConv(in_channels, groups, width, kernel, stride, bias, same)
    kind = SameConv if same else nn.Conv2d
    return kind(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=bias)
