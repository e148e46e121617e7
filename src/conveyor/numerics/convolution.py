"""Convolutions of a CPU's training step as matrix products, where those are faster than the library's own kernels.

Wide 3x3 kernels with stride 1 go through Winograd's minimal filtering (`native/winograd.c`), which needs a quarter of the
multiplications.

A channels-last tensor [N, C, H, W] is a matrix of N*H*W rows and C contiguous channels. So a convolution with a 1x1
kernel is a product of matrices, forward and backward, without any copy; and the gradient of a larger kernel's weights is
dY^T [out, rows] @ patches [rows, kernel^2 * in], with the patches of a few images or rows at a time, small enough to
stay in the cache between being written and being read. oneDNN's float32 kernels for AVX2 reach 40 to 60 % of the rate of
a matrix product in these two cases, and close to all of it in the others, which are left to them; those for AVX-512 need
no help with larger kernels. The weights of wide depthwise kernels have a compiled kernel of our own
(`native/depthwise.c`), two to four times as fast.

Without a C compiler the first and the last are left to the library too.
"""

import functools
import types
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from conveyor.numerics.native.build import library, run

PATCH_FLOATS = 2**19
"""Floats in a block of patches: 2 MiB."""
FEWEST_CHANNELS = 64
"""Below so many input or output channels the matrices are too narrow to gain much.

And Winograd's filtering would round visibly worse than the plain sum: its error hardly depends on the number of channels.
"""
WINOGRAD_CHANNELS = 16
"""Winograd's kernels take multiples of so many channels."""
MOST_WEIGHTS = {"AVX2": 2**20, "AVX512": 2**17}
"""Input times output channels up to which Winograd's kernels are ahead, by the vectors that the library has.

Transforming the weights is work that does not shrink with the picture: with 512 x 512 channels of 7 x 7 pixels, the library's
wider vectors are faster.
"""


def install(model: nn.Module) -> None:
    """Let every plain convolution of `model` compute as the functions here do while it trains; in place."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and is_plain(module) and way(module.weight, Geometry.of(module)) != "library":
            module._conv_forward = types.MethodType(_layer_forward, module)  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a convolution needs besides its tensors."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    direct: bool = False
    """Only float32 sums of products of inputs and weights, as emulated half arithmetic promises: no Winograd."""

    @classmethod
    def of(cls, layer: nn.Conv2d, *, direct: bool = False) -> "Geometry":
        return cls(layer.stride, cast(tuple[int, ...], layer.padding), layer.dilation, layer.groups, direct)


def way(weight: Tensor, geometry: Geometry) -> str:
    """How a layer computes: as one product, by patches, with one of the compiled kernels, or by the library.

    A matter of shapes alone, so that equal layers give equal bits in every run.
    """
    out_channels, channels, *kernel = weight.shape
    if geometry.dilation != (1, 1) or len(kernel) != 2:
        return "library"
    if geometry.groups == 1:
        if kernel == [1, 1] and geometry.stride == (1, 1) and geometry.padding == (0, 0):
            return "product"
        if min(channels, out_channels) < FEWEST_CHANNELS:
            return "library"
        few = channels * out_channels <= MOST_WEIGHTS.get(_vectors(), 0)
        if few and not geometry.direct and suits_winograd(weight, geometry):
            return "winograd"
        return _without_winograd()
    depthwise = channels == 1 and geometry.groups == out_channels
    if depthwise and kernel in ([5, 5], [7, 7]) and geometry.stride[0] == geometry.stride[1]:
        return "depthwise" if library("depthwise") is not None else "library"
    return "library"


def _chosen(x: Tensor, weight: Tensor, geometry: Geometry) -> str:
    """`way`, where x allows it: Winograd's tiles of 4 x 4 must be at least half full, and there must be an image.

    Without any, no kernel would write the gradient of the weights, whose memory is not cleared.
    """
    if not _fits(x) or not x.numel():
        return "library"
    found = way(weight, geometry)
    return _without_winograd() if found == "winograd" and not fills_tiles(x) else found


def _without_winograd() -> str:
    """How other large kernels compute: wide vectors leave the library nothing to gain."""
    return "library" if _vectors() == "AVX512" else "patches"


def has_winograd() -> bool:
    """Whether Winograd's kernels can be had, on a processor of a kind that they were measured on."""
    return _vectors() in MOST_WEIGHTS and library("winograd") is not None


def _vectors() -> str:
    """The kind of vectors that the library computes with."""
    return torch.backends.cpu.get_cpu_capability()


def suits_winograd(weight: Tensor, geometry: Geometry) -> bool:
    """3x3 with stride 1 and a border of 1, enough channels and whole vectors of them on both sides; and there are kernels."""
    out_channels, channels, *kernel = weight.shape
    return (
        (kernel, geometry.stride, geometry.padding) == ([3, 3], (1, 1), (1, 1))
        and geometry.dilation == (1, 1)
        and geometry.groups == 1
        and min(channels, out_channels) >= FEWEST_CHANNELS
        and channels % WINOGRAD_CHANNELS == out_channels % WINOGRAD_CHANNELS == 0
        and weight.is_contiguous(memory_format=torch.channels_last)
        and has_winograd()
    )


def fills_tiles(x: Tensor) -> bool:
    """Whether Winograd's tiles of 4 x 4 pixels are at least half full."""
    height, width = x.shape[2:]
    return 2 * height * width >= 16 * -(-height // 4) * -(-width // 4)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """The convolution of x [N, C, H, W]."""
    chosen = _chosen(x, weight, geometry)
    if chosen == "winograd":
        return winograd_forward(x, weight, bias)
    if chosen == "product":
        if _linear_is_faster():
            return _standing(_linear(rows(x), weight.flatten(1), bias), x)
        y, matrix = empty(x, weight.shape[0]), weight.flatten(1).t()
        torch.mm(rows(x), matrix, out=rows(y)) if bias is None else torch.addmm(bias, rows(x), matrix, out=rows(y))
        return y
    return F.conv2d(x, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)


def input_gradient(dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """The gradient of x."""
    chosen = _chosen(x, weight, geometry)
    if chosen == "winograd":
        return winograd_input(channels_last(dy), x, weight)
    if chosen == "product":
        dy = rows(channels_last(dy))
        if _linear_is_faster():
            return images(_linear(dy, weight.flatten(1).t()), x)
        return images(torch.mm(dy, weight.flatten(1)), x)
    return library_gradient(0, dy, x, weight, geometry)


def weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """The gradient of the weights, with their strides: over all pixels, dy times the patch of x that the kernel covers there."""
    chosen = _chosen(x, weight, geometry)
    if chosen == "library":
        return library_gradient(1, dy, x, weight, geometry)
    dy = channels_last(dy)
    if chosen == "depthwise":
        return weights_depthwise(dy, x, weight, geometry)
    if chosen == "winograd":
        return winograd_weights(dy, x, weight)
    if chosen == "patches":
        return _weights_by_patches(dy, x, weight, geometry)
    if _linear_is_faster():
        return _weights_of_product(dy, x, weight, geometry)
    gradient = torch.empty_like(weight)
    torch.mm(rows(dy).t(), rows(x), out=gradient.flatten(1))
    return gradient


def bias_gradient(dy: Tensor) -> Tensor:
    """The gradient of the bias.

    A mean or a flattening behind the layer gives dy in another order of memory than a pipeline that is cut there, and the
    sum is taken in that order.
    """
    return channels_last(dy).sum((0, 2, 3))


@functools.cache
def _linear_is_faster() -> bool:
    """Whether oneDNN's matrix product is to be used in place of MKL's, which `torch.mm` calls.

    MKL leaves half of the vectors of other makers' AVX-512 processors unused: 117 instead of 270 GFLOP/s on one core.
    """
    return _vectors() == "AVX512" and torch.backends.mkldnn.is_available()


def _linear(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [n, in] @ matrix [out, in]^T + bias, by oneDNN."""
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, matrix, bias, "none", [], ""))


def _weights_of_product(dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """dY^T X by oneDNN: many rows and few channels suit its convolutions better than its matrix product.

    With one thread PyTorch leaves 1x1 kernels on fewer than 16 images to MKL, so the lines of the images are handed over
    as images.
    """
    count, channels, height, width = x.shape
    if count * height * width <= max(channels, weight.shape[0]):
        matrix = _linear(rows(dy).t(), rows(x).t())
        # A view has strides of its own for the kernel's one pixel: the optimiser would copy it.
        same = matrix.stride() == weight.stride()[:2]
        return matrix.as_strided(weight.shape, weight.stride()) if same else matrix.view(weight.shape)
    lines = count * height, 1, width
    parts = [rows(one).view(*lines, one.shape[1]).permute(0, 3, 1, 2) for one in (dy, x)]
    return library_gradient(1, parts[0], parts[1], weight, geometry)


def library_gradient(which: int, dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    found = torch.ops.aten.convolution_backward(
        dy, x, weight, None, geometry.stride, geometry.padding, geometry.dilation, False,
        [0] * len(geometry.stride), geometry.groups, [which == 0, which == 1, False],
    )  # fmt: skip
    return cast(Tensor, found[which])


def is_plain(layer: nn.Conv2d) -> bool:
    """Whether the layer is torch's own, padded with zeros by numbers, so that `_conv_forward` is all it does."""
    return (
        type(layer).forward is nn.Conv2d.forward and layer.padding_mode == "zeros" and isinstance(layer.padding, tuple)
    )


def _layer_forward(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In place of `Conv2d._conv_forward`, which the layer's own forward calls."""
    geometry = Geometry.of(layer)
    if not (torch.is_grad_enabled() and weight.requires_grad and _fits(x)):
        return F.conv2d(x, weight, bias, layer.stride, geometry.padding, layer.dilation, layer.groups)
    return cast(Tensor, _Convolution.apply(x, weight, bias, geometry))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        return forward(x, weight, bias, geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy, geometry = gradients[0], ctx.geometry
        need_x, need_weight, need_bias, _ = ctx.needs_input_grad
        return (
            input_gradient(dy, x, weight, geometry) if need_x else None,
            weight_gradient(dy, x, weight, geometry) if need_weight else None,
            bias_gradient(dy) if need_bias else None,
            None,
        )


def _fits(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous(memory_format=torch.channels_last)


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def rows(x: Tensor) -> Tensor:
    """[N, C, H, W], channels last, as the matrix [N*H*W, C]; no copy."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def images(rows: Tensor, like: Tensor) -> Tensor:
    """The matrix [N*H*W, C] as [N, C, H, W] with the N, H and W of `like`; no copy."""
    batch, _, height, width = like.shape
    return rows.view(batch, height, width, rows.shape[1]).permute(0, 3, 1, 2)


def _standing(matrix: Tensor, like: Tensor) -> Tensor:
    """`images`, but no view, which an activation could not change in place."""
    shown = images(matrix, like)
    return torch.empty(0, dtype=matrix.dtype).set_(matrix.untyped_storage(), 0, shown.shape, shown.stride())


def _weights_by_patches(dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Sum over all output pixels of dy [out] times the patch of x [in, kernel, kernel] under the kernel there.

    All tensors are channels last; the result has the strides of `weight`.
    """
    out_channels, channels, kernel_h, kernel_w = weight.shape
    batch, _, height, width = dy.shape
    patches = patches_of(x, weight, geometry, height, width)
    values = kernel_h * kernel_w * channels
    total = torch.empty(out_channels, values)
    dy = dy.permute(0, 2, 3, 1)
    # Not more with more threads: the sum over blocks must not depend on their number.
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
    return total.view(out_channels, kernel_h, kernel_w, channels).permute(0, 3, 1, 2)


def patches_of(x: Tensor, weight: Tensor, geometry: Geometry, height: int, width: int) -> Tensor:
    """The patch of x for each of height x width pixels of the result: a view [N, height, width, kernel, kernel * C] of padded x.

    All tensors are channels last.
    """
    _, channels, kernel_h, kernel_w = weight.shape
    stride, padding = geometry.stride, geometry.padding
    pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0])).contiguous()
    line = pixels.shape[2] * channels
    image = pixels.shape[1] * line
    # One row of a kernel lies in one piece: kernel_w neighbouring pixels of `channels` values.
    return pixels.as_strided(
        (x.shape[0], height, width, kernel_h, kernel_w * channels),
        (image, stride[0] * line, stride[1] * channels, line, 1),
    )


def empty(like: Tensor, channels: int) -> Tensor:
    """A channels-last tensor with the N, H and W of `like`; no view, which an activation could not change in place."""
    batch, _, height, width = like.shape
    return torch.empty((batch, channels, height, width), dtype=like.dtype, memory_format=torch.channels_last)


def winograd_forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution of x by Winograd's filtering; all but the bias (float32) are float32, or bfloat16 with float32 inside."""
    y = empty(x, weight.shape[0])
    _winograd(x, weight, bias, y, turned=False)
    return y


def winograd_input(dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of x, likewise."""
    dx = torch.empty_like(x)
    _winograd(dy, weight, None, dx, turned=True)
    return dx


def winograd_weights(dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the weights, likewise."""
    gradient = torch.empty_like(weight)
    batch, channels, height, width = x.shape
    pointers, brain = (x.data_ptr(), dy.data_ptr(), gradient.data_ptr()), x.dtype == torch.bfloat16
    run("winograd", "winograd_weights", *pointers, batch, height, width, channels, weight.shape[0], brain=brain)
    return gradient


def _winograd(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, *, turned: bool) -> None:
    """y = the convolution of x; `turned`: x is the gradient of a convolution's result, and y of its input."""
    _, _, height, width = x.shape
    out_channels, channels = weight.shape[:2]
    run(
        "winograd", "winograd", x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr(),
        x.shape[0], height, width, channels, out_channels, turned, brain=x.dtype == torch.bfloat16,
    )  # fmt: skip


def weights_depthwise(dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """The same where each channel has a square kernel of its own; needs the compiled kernel. Float32 or bfloat16."""
    gradient = torch.empty(weight.shape)
    pointers, sizes = (x.data_ptr(), dy.data_ptr(), gradient.data_ptr()), _depthwise_sizes(dy, x, weight, geometry)
    run("depthwise", "depthwise", *pointers, *sizes, brain=x.dtype == torch.bfloat16)
    return gradient.to(weight.dtype)


def input_depthwise(dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """The gradient of the input of such a layer, for any stride; needs the compiled kernel. Float32 or bfloat16."""
    dx = torch.empty_like(x)
    taps = weight.flatten(1).t().float().contiguous()
    pointers, sizes = (dy.data_ptr(), taps.data_ptr(), dx.data_ptr()), _depthwise_sizes(dy, x, weight, geometry)
    run("depthwise", "depthwise_input", *pointers, *sizes, brain=x.dtype == torch.bfloat16)
    return dx


def _depthwise_sizes(dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> tuple[int, ...]:
    """batch, height, width, channels, out_height, out_width, kernel, stride, padding above, padding to the left."""
    batch, channels, height, width = x.shape
    return batch, height, width, channels, *dy.shape[2:], weight.shape[2], geometry.stride[0], *geometry.padding
