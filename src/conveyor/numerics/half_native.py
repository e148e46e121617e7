"""Convolutions of half numbers on a processor that multiplies them: float32 sums, results rounded once to nearest.

The library's convolutions reach the rate of its matrix product, but for these (one core with AVX512_BF16):

- 1x1 kernels, above all the gradient of their weights and small images: a matrix product is up to 2.4 times as fast;
- the gradients of depthwise layers with a stride, or with kernels wider than 3: reference code, hundreds of times slower
  than float32. Kernels of our own take their place (`native/depthwise.c`).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from conveyor.numerics import convolution as wide
from conveyor.numerics.convolution import Geometry
from conveyor.numerics.native.build import library

FEWEST_CHANNELS = 40
"""Below so many input or output channels, the library's gradient of a 1x1 kernel's weights is the faster one."""
OPERATIONS = ("forward", "input", "weight")


def key(operation: str, x: Tensor, weight: Tensor, geometry: Geometry) -> str:
    """One operation of a layer by its shapes, whatever the batch; as it is stored with a run."""
    shapes = "x".join(map(str, x.shape[1:])), "x".join(map(str, weight.shape))
    return f"{operation} {shapes[0]} by {shapes[1]} stride {geometry.stride[0]} groups {geometry.groups}"


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """The convolution of x [N, C, H, W]; all tensors have the same half type."""
    if not _is_product(x, weight, geometry):
        return F.conv2d(x, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
    y, matrix = wide.empty(x, weight.shape[0]), weight.flatten(1).t()
    if bias is None:
        torch.mm(wide.rows(x), matrix, out=wide.rows(y))
    else:
        torch.addmm(bias, wide.rows(x), matrix, out=wide.rows(y))
    return y


def input_gradient(dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """The gradient of x."""
    dy = wide.channels_last(dy)
    if _is_product(x, weight, geometry):
        return wide.images(torch.mm(wide.rows(dy), weight.flatten(1)), x)
    if _is_depthwise(x, weight, geometry) and geometry.stride[0] > 1:
        return wide.input_depthwise(dy, x, weight, geometry)
    return wide.library_gradient(0, dy, x, weight, geometry)


def weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """The gradient of the weights, in their type."""
    dy = wide.channels_last(dy)
    if _is_product(x, weight, geometry) and min(weight.shape[:2]) >= FEWEST_CHANNELS:
        gradient = torch.empty_like(weight)
        torch.mm(wide.rows(dy).t(), wide.rows(x), out=gradient.flatten(1))
        return gradient
    if _is_depthwise(x, weight, geometry) and weight.shape[2] > 3:
        return wide.weights_depthwise(dy, x, weight, geometry)
    return wide.library_gradient(1, dy, x, weight, geometry)


def _is_product(x: Tensor, weight: Tensor, geometry: Geometry) -> bool:
    return (
        tuple(weight.shape[2:]) == (1, 1)
        and geometry.groups == 1
        and (geometry.stride, geometry.padding) == ((1, 1), (0, 0))
        and _is_last(x)
    )


def _is_depthwise(x: Tensor, weight: Tensor, geometry: Geometry) -> bool:
    """Whether the compiled kernels can take the layer's gradients."""
    return (
        x.dtype == torch.bfloat16
        and geometry.groups == x.shape[1] == weight.shape[0]
        and tuple(weight.shape[2:]) in ((3, 3), (5, 5), (7, 7))
        and geometry.dilation == (1, 1)
        and geometry.stride[0] == geometry.stride[1]
        and _is_last(x)
        and library("depthwise") is not None
    )


def _is_last(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.numel() > 0 and x.is_contiguous(memory_format=torch.channels_last)
