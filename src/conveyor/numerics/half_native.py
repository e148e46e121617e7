"""Convolutions of half numbers on a processor that multiplies them: float32 sums, results rounded once to nearest.

The library's convolutions reach the rate of its matrix product, but for these (one core with AVX512_BF16):

- 1x1 kernels, above all the gradient of their weights and small images: a matrix product is up to 2.4 times as fast. Wide
  ones with a stride are products too, of the pixels that they read (1.1 to 2 times);
- the gradient of the weights of wide 3x3 kernels with a stride or on small images: a product with the patches under the
  kernel, 1.3 to 1.7 times;
- the gradients of depthwise layers with a stride, or with kernels wider than 3: reference code, hundreds of times slower
  than float32. Kernels of our own take their place (`native/depthwise.c`);
- 3x3 kernels with stride 1, where Winograd's filtering in float32 was found to be faster (`half_choice`): with a quarter of
  the multiplications, up to 1.5 times on processors whose half products are twice as fast as their float32 ones.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from conveyor.numerics import convolution as wide
from conveyor.numerics.convolution import Geometry
from conveyor.numerics.native.build import library

FEWEST_CHANNELS = 40
"""Below so many input or output channels, the library's gradient of a 1x1 kernel's weights is the faster one."""
WIDE_CHANNELS = 256
"""From so many input and output channels on, larger kernels and strides go by products where those are ahead."""
SMALL_IMAGE = 64
"""Pixels up to which the library's weight gradient of a wide 3x3 kernel without a stride is behind."""
MOST_PATCHES = 2**24
"""Values of the patches of a batch, which take as much memory again as the activations of some layers."""
OPERATIONS = ("forward", "input", "weight")


def key(operation: str, x: Tensor, weight: Tensor, geometry: Geometry) -> str:
    """One operation of a layer by its shapes, whatever the batch; as it is stored with a run."""
    shapes = "x".join(map(str, x.shape[1:])), "x".join(map(str, weight.shape))
    return f"{operation} {shapes[0]} by {shapes[1]} stride {geometry.stride[0]} groups {geometry.groups}"


def suits_winograd(x: Tensor, weight: Tensor, geometry: Geometry) -> bool:
    """Whether a layer's operations may go by Winograd's filtering."""
    return x.dtype == torch.bfloat16 and _is_last(x) and wide.suits_winograd(weight, geometry) and wide.fills_tiles(x)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, *, winograd: bool = False) -> Tensor:
    """The convolution of x [N, C, H, W]; all tensors have the same half type."""
    if winograd:
        return wide.winograd_forward(x, weight, None if bias is None else bias.float())
    if not _is_product(x, weight, geometry):
        return F.conv2d(x, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
    x, matrix = _seen(x, geometry), weight.flatten(1).t()
    y = wide.empty(x, weight.shape[0])
    if bias is None:
        torch.mm(wide.rows(x), matrix, out=wide.rows(y))
    else:
        torch.addmm(bias, wide.rows(x), matrix, out=wide.rows(y))
    return y


def input_gradient(dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, *, winograd: bool = False) -> Tensor:
    """The gradient of x."""
    dy = wide.channels_last(dy)
    if winograd:
        return wide.winograd_input(dy, x, weight)
    if _is_product(x, weight, geometry):
        seen = wide.images(torch.mm(wide.rows(dy), weight.flatten(1)), dy)
        if geometry.stride == (1, 1):
            return seen
        dx = torch.zeros_like(x)
        dx[:, :, :: geometry.stride[0], :: geometry.stride[1]] = seen
        return dx
    if _is_depthwise(x, weight, geometry) and geometry.stride[0] > 1:
        return wide.input_depthwise(dy, x, weight, geometry)
    return wide.library_gradient(0, dy, x, weight, geometry)


def weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, *, winograd: bool = False) -> Tensor:
    """The gradient of the weights, in their type."""
    dy = wide.channels_last(dy)
    if winograd:
        return wide.winograd_weights(dy, x, weight)
    if _is_product(x, weight, geometry) and min(weight.shape[:2]) >= FEWEST_CHANNELS:
        gradient = torch.empty_like(weight)
        torch.mm(wide.rows(dy).t(), wide.rows(_seen(x, geometry)), out=gradient.flatten(1))
        return gradient
    if _by_patches(dy, x, weight, geometry):
        out, channels, height, width = weight.shape
        patches = wide.patches_of(x, weight, geometry, *dy.shape[2:]).reshape(-1, height * width * channels)
        return torch.mm(wide.rows(dy).t(), patches).view(out, height, width, channels).permute(0, 3, 1, 2)
    # The library's kernel left numbers of freed memory in the gradient of maps smaller than the kernel.
    if _is_depthwise(x, weight, geometry) and (weight.shape[2] > 3 or min(x.shape[2:]) < 3):
        return wide.weights_depthwise(dy, x, weight, geometry)
    return wide.library_gradient(1, dy, x, weight, geometry)


def _seen(x: Tensor, geometry: Geometry) -> Tensor:
    """The pixels of x that a 1x1 kernel with a stride reads."""
    if geometry.stride == (1, 1):
        return x
    return wide.channels_last(x[:, :, :: geometry.stride[0], :: geometry.stride[1]])


def _is_product(x: Tensor, weight: Tensor, geometry: Geometry) -> bool:
    return (
        tuple(weight.shape[2:]) == (1, 1)
        and geometry.groups == 1
        and geometry.padding == (0, 0)
        and (geometry.stride == (1, 1) or min(weight.shape[:2]) >= WIDE_CHANNELS)
        and _is_last(x)
    )


def _by_patches(dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> bool:
    pixels = dy.shape[2] * dy.shape[3]
    return (
        tuple(weight.shape[2:]) == (3, 3)
        and geometry.groups == 1
        and geometry.dilation == (1, 1)
        and min(weight.shape[:2]) >= WIDE_CHANNELS
        and (geometry.stride != (1, 1) or pixels <= SMALL_IMAGE)
        and dy.shape[0] * pixels * weight[0].numel() <= MOST_PATCHES
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
