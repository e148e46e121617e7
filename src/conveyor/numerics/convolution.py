"""Convolutions of a CPU's training step as matrix products, where those are faster than the library's own kernels.

A channels-last tensor [N, C, H, W] is a matrix of N*H*W rows and C contiguous channels. So a convolution with a 1x1
kernel is a product of matrices, forward and backward, without any copy; and the gradient of a larger kernel's weights is
dY^T [out, rows] @ patches [rows, kernel^2 * in], with the patches of a few images or rows at a time, small enough to
stay in the cache between being written and being read. oneDNN's float32 kernels for AVX2 reach 40 to 60 % of the rate of
a matrix product in these two cases, and close to all of it in the others, which are left to them. The weights of wide
depthwise kernels have a compiled kernel of our own (`native/depthwise.c`), two to four times as fast.
"""

import types
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from conveyor.numerics.native.build import library

PATCH_FLOATS = 2**19
"""Floats in a block of patches: 2 MiB."""
FEWEST_CHANNELS = 64
"""Below so many input or output channels the matrices are too narrow to gain anything."""


def install(model: nn.Module) -> None:
    """Let every convolution of `model` that can gain use the matrix products in training; in place."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and _can_gain(module):
            module._conv_forward = types.MethodType(_forward, module)  # type: ignore[method-assign]


def _can_gain(layer: nn.Conv2d) -> bool:
    return (
        type(layer).forward is nn.Conv2d.forward
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and isinstance(layer.padding, tuple)
        and (
            (layer.groups == 1 and min(layer.in_channels, layer.out_channels) >= FEWEST_CHANNELS)
            or _is_product(layer)
            or (_is_wide_depthwise(layer) and library("depthwise") is not None)
        )
    )


def _is_product(layer: nn.Conv2d) -> bool:
    """Whether the convolution is one product of matrices."""
    return layer.groups == 1 and layer.kernel_size == (1, 1) and layer.stride == (1, 1) and layer.padding == (0, 0)


def _is_wide_depthwise(layer: nn.Conv2d) -> bool:
    """Whether each channel has a kernel of its own, of a size at which ours is the faster one."""
    return (
        layer.groups == layer.in_channels == layer.out_channels > 1
        and layer.kernel_size in ((5, 5), (7, 7))
        and layer.stride[0] == layer.stride[1]
    )


def _forward(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In place of `Conv2d._conv_forward`, which the layer's own forward calls."""
    padding = cast(tuple[int, int], layer.padding)
    if not (torch.is_grad_enabled() and weight.requires_grad and _fits(x) and (_fits(weight) or layer.groups > 1)):
        return F.conv2d(x, weight, bias, layer.stride, padding, 1, layer.groups)
    function = _Product if _is_product(layer) else _Convolution
    return cast(Tensor, function.apply(x, weight, bias, layer.stride, padding, layer.groups))


def _fits(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous(memory_format=torch.channels_last)


def _rows(x: Tensor) -> Tensor:
    """[N, C, H, W], channels last, as the matrix [N*H*W, C]; no copy."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _images(rows: Tensor, like: Tensor) -> Tensor:
    """The matrix [N*H*W, C] as [N, C, H, W] with the N, H and W of `like`; no copy."""
    batch, _, height, width = like.shape
    return rows.view(batch, height, width, rows.shape[1]).permute(0, 3, 1, 2)


class _Product(torch.autograd.Function):
    """A 1x1 convolution: Y = X W^T + b, dX = dY W, dW = dY^T X."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *_geometry: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        matrix = weight.flatten(1).t()
        rows = torch.mm(_rows(x), matrix) if bias is None else torch.addmm(bias, _rows(x), matrix)
        return _images(rows, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy = _rows(gradients[0].contiguous(memory_format=torch.channels_last))
        dx = _images(torch.mm(dy, weight.flatten(1)), x) if ctx.needs_input_grad[0] else None
        dweight = None
        if ctx.needs_input_grad[1]:
            dweight = torch.empty_like(weight)
            torch.mm(dy.t(), _rows(x), out=dweight.flatten(1))
        return dx, dweight, dy.sum(0) if ctx.needs_input_grad[2] else None, None, None, None


class _Convolution(torch.autograd.Function):
    """Any other convolution: the library's, but for the gradient of the weights."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
        groups: int,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding, ctx.groups = stride, padding, groups
        return F.conv2d(x, weight, bias, stride, padding, 1, groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        dx = None
        if need_x:
            mask = [True, False, False]
            dx = torch.ops.aten.convolution_backward(
                dy, x, weight, None, ctx.stride, ctx.padding, [1, 1], False, [0, 0], ctx.groups, mask
            )[0]
        dweight = None
        if need_weight:
            of_weights = weight_gradient if ctx.groups == 1 else depthwise_weight_gradient
            dweight = of_weights(dy, x, weight, ctx.stride, ctx.padding)
        return dx, dweight, _rows(dy).sum(0) if need_bias else None, None, None, None


def weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """Sum over all output pixels of dy [out] times the patch of x [in, kernel, kernel] that the pixel saw.

    All tensors are channels last; the result has the strides of `weight`.
    """
    out_channels, channels, kernel_h, kernel_w = weight.shape
    batch, _, height, width = dy.shape
    pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0])).contiguous()
    line = pixels.shape[2] * channels
    image = pixels.shape[1] * line
    # One row of a kernel lies in one piece: kernel_w neighbouring pixels of `channels` values.
    patches = pixels.as_strided(
        (batch, height, width, kernel_h, kernel_w * channels), (image, stride[0] * line, stride[1] * channels, line, 1)
    )
    values = kernel_h * kernel_w * channels
    gradient = torch.empty_like(weight)
    total = gradient.permute(0, 2, 3, 1).view(out_channels, values)
    dy = dy.permute(0, 2, 3, 1)
    images = max(1, PATCH_FLOATS // (height * width * values))
    lines = height if images > 1 else max(1, min(height, PATCH_FLOATS // (width * values)))
    block = torch.empty(images, lines, width, kernel_h, kernel_w * channels)
    first = True
    for start in range(0, batch, images):
        for top in range(0, height, lines):
            part = patches[start : start + images, top : top + lines]
            filled = block[: part.shape[0], : part.shape[1]].copy_(part)
            rows = dy[start : start + images, top : top + lines].reshape(-1, out_channels)
            torch.addmm(total, rows.t(), filled.view(-1, values), beta=0 if first else 1, out=total)
            first = False
    return gradient


def depthwise_weight_gradient(
    dy: Tensor, x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """The same where each channel has a square kernel of its own; needs the compiled kernel."""
    kernels = library("depthwise")
    assert kernels is not None, "layers use this only where the kernel is"
    channels, kernel = weight.shape[0], weight.shape[2]
    gradient = torch.empty(weight.shape)
    failed = kernels.conveyor_depthwise(
        x.data_ptr(), dy.data_ptr(), gradient.data_ptr(), x.shape[0], x.shape[2], x.shape[3], channels, dy.shape[2],
        dy.shape[3], kernel, stride[0], padding[0], padding[1],
    )  # fmt: skip
    assert not failed, f"kernel {kernel} is too wide"
    return gradient
