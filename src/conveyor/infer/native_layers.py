"""The compiled layers (`numerics/native/layers.c`, `winograd.c`) with their weights packed, ready for any batch.

`bind` gives the calls that compute a layer for tensors of fixed size and place, so that an answer costs one call for each
and nothing else. Tensors are [N, H, W, C]; who binds them keeps them. Between their pixels may lie a gap where `takes_gaps`
says so.
"""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from conveyor.infer.engines.fusion import is_depthwise
from conveyor.models.layers.conv import SameConv, same_padding
from conveyor.numerics.convolution import FEWEST_CHANNELS, WINOGRAD_CHANNELS
from conveyor.numerics.native.build import library

FEWEST_TILES = 16
"""With fewer, reading Winograd's transformed kernels takes longer than it saves."""
_CODES = {"none": 0, "relu": 1, "silu": 2, "relu6": 3, "hardswish": 4, "sigmoid": 5, "hardsigmoid": 6}
_POINTERS = ("x", "weights", "bias", "residual", "y")
_SIZES = (
    "images", "height", "width", "pixel", "out_height", "out_width", "out_pixel", "groups", "depth", "outputs",
    "kernel_height", "kernel_width", "stride", "top", "left",
)  # fmt: skip


class _Convolution(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_ssize_t) for name in _SIZES),
        ("activation", ctypes.c_int),
        ("threads", ctypes.c_int),
    ]


class _Depthwise(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "weights", "bias", "y", "mean")),
        *(
            (name, ctypes.c_ssize_t)
            for name in (
                "images", "height", "width", "channels", "out_height", "out_width", "kernel", "stride", "top", "left",
            )
        ),
        ("activation", ctypes.c_int),
        ("threads", ctypes.c_int),
    ]  # fmt: skip


class Call:
    """A compiled function with its arguments, which are numbers; `alive` holds what some of them point at."""

    __slots__ = ("alive", "arguments", "function")

    def __init__(self, function: Callable[..., Any], *arguments: Any, alive: Any = None) -> None:
        self.function, self.arguments, self.alive = function, arguments, alive

    def __call__(self) -> None:
        if self.function(*self.arguments):
            raise MemoryError("not enough memory for a layer")


def available() -> bool:
    """Whether the kernels can be had on this machine."""
    return library("layers") is not None and library("winograd") is not None


def _kernels(name: str = "layers") -> Any:
    found = library(name)
    assert found is not None, "asked for only where `available`"
    return found


def _padded(values: Tensor, surplus: int) -> Tensor:
    """The values and `surplus` zeros: kernels read whole vectors."""
    return torch.cat([values.flatten(), torch.zeros(surplus)])


def before(conv: nn.Conv2d, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of zeros above and to the left of the picture."""
    if isinstance(conv, SameConv):
        pairs = zip((height, width), conv.kernel_size, conv.stride, strict=True)
        top, left = (same_padding(size, kernel, stride)[0] for size, kernel, stride in pairs)
        return top, left
    assert isinstance(conv.padding, tuple)
    return conv.padding[0], conv.padding[1]


class Convolution:
    """A convolution or a dense layer with bias, residual and activation.

    Groups too narrow for a vector are joined, with weights of zero between them. `flat`: the picture has few channels and
    its border already, so a line of the kernel is one tap.
    """

    def __init__(self, module: nn.Conv2d | nn.Linear, activation: str, *, flat: bool = False) -> None:
        self.width = _kernels().conveyor_width()
        self.conv = module if isinstance(module, nn.Conv2d) else None
        self.activation, self.flat = _CODES[activation], flat
        weight = module.weight.detach().float()
        weight = weight.permute(0, 2, 3, 1) if self.conv is not None else weight[:, None, None]  # [out, kh, kw, in]
        self.kernel, self.stride = (weight.shape[1], weight.shape[2]), 1
        groups = 1
        if self.conv is not None:
            self.stride, groups = self.conv.stride[0], self.conv.groups
        if flat:
            weight, self.kernel = weight.flatten(2)[:, :, None], (weight.shape[1], 1)
        joined = _joined(groups, len(weight) // groups, self.width)
        weight = _block_diagonal(weight, groups, joined)
        self.groups, self.depth, self.outputs = groups // joined, weight.shape[-1], len(weight) // (groups // joined)
        self.weights = self._packed(weight)
        bias = torch.zeros(len(weight)) if module.bias is None else module.bias.detach().float()
        self.bias = _padded(bias, 2 * self.width)
        self.winograd = _Winograd.of(module, activation) if self.conv is not None and not flat else None

    def _packed(self, weight: Tensor) -> Tensor:
        """[out, kh, kw, in] as [group][panel][tap][depth][width of the panel]."""
        taps = math.prod(self.kernel)
        rows = -(-self.outputs // self.width) * self.width
        padded = torch.zeros(self.groups, rows, taps * self.depth)
        padded[:, : self.outputs] = weight.reshape(self.groups, self.outputs, -1)
        panels = padded.split(2 * self.width, dim=1)
        return torch.cat([panel.transpose(1, 2).flatten(1) for panel in panels], dim=1).contiguous()

    def bind(self, x: Tensor, y: Tensor, residual: Tensor | None, factors: Tensor | None, threads: int) -> list[Call]:
        """The calls that compute y [N, H, W, out] of x; `factors` [N, in] go into the weights, image by image."""
        if self.winograd is not None and factors is None and self.winograd.pays(x):
            return [self.winograd.bind(x, y, self.bias, residual, threads)]
        if factors is None:
            return [self._call(x, y, self.weights, residual, threads)]
        images, height, width, channels = x.shape
        if height * width < self.outputs:  # fewer values to scale than weights
            scaled = torch.empty_like(x)
            where = x.data_ptr(), factors.data_ptr(), scaled.data_ptr()
            scale = Call(_kernels().conveyor_scale, *where, images, height * width, channels, threads, alive=scaled)
            return [scale, self._call(scaled, y, self.weights, residual, threads)]
        scaled = torch.empty_like(self.weights)
        calls: list[Call] = []
        for image in range(len(x)):
            one = slice(image, image + 1)
            where = self.weights.data_ptr(), factors[one].data_ptr(), scaled.data_ptr()
            calls.append(Call(_kernels().conveyor_scale_weights, *where, self.depth, self.outputs))
            calls.append(self._call(x[one], y[one], scaled, None if residual is None else residual[one], threads))
        return calls

    def _call(self, x: Tensor, y: Tensor, weights: Tensor, residual: Tensor | None, threads: int) -> Call:
        images, height, width, _ = x.shape
        top, left = (0, 0) if self.flat or self.conv is None else before(self.conv, height, width)
        said = _Convolution(
            x.data_ptr(), weights.data_ptr(), self.bias.data_ptr(), None if residual is None else residual.data_ptr(),
            y.data_ptr(), images, height, width, x.stride(2), *y.shape[1:3], y.stride(2), self.groups, self.depth,
            self.outputs, *self.kernel, self.stride, top, left, self.activation, threads,
        )  # fmt: skip
        return Call(_kernels().conveyor_convolution, ctypes.addressof(said), alive=(said, weights))


def _joined(groups: int, outputs: int, width: int) -> int:
    """How many groups to compute as one, so that their channels fill a vector."""
    return next((n for n in range(1, groups + 1) if groups % n == 0 and n * outputs >= width), groups)


def _block_diagonal(weight: Tensor, groups: int, joined: int) -> Tensor:
    """[out, kh, kw, in] of `groups` groups as that of groups / joined wider ones."""
    if joined == 1:
        return weight
    outputs, depth = len(weight) // groups, weight.shape[-1]
    wide = torch.zeros(groups // joined, joined, outputs, *weight.shape[1:3], joined, depth)
    narrow = weight.view(groups // joined, joined, *(outputs, *weight.shape[1:]))
    for one in range(joined):
        wide[:, one, :, :, :, one] = narrow[:, one]
    return wide.view(len(weight), *weight.shape[1:3], joined * depth)


class _Winograd:
    """A 3x3 convolution by Winograd's filtering, its kernels transformed beforehand."""

    def __init__(self, conv: nn.Conv2d, relu: bool) -> None:
        self.channels, self.outputs, self.relu = conv.in_channels, conv.out_channels, relu
        weight = conv.weight.detach().float().permute(0, 2, 3, 1).contiguous()
        kernels = _kernels("winograd")
        self.transformed = torch.empty(kernels.conveyor_winograd_size(self.channels, self.outputs))
        kernels.conveyor_winograd_kernels(weight.data_ptr(), self.transformed.data_ptr(), self.channels, self.outputs)

    @classmethod
    def of(cls, module: nn.Module, activation: str) -> "_Winograd | None":
        """Where the kernels fit, and channels are many enough for the error not to grow (see `numerics.convolution`)."""
        fits = (
            type(module) is nn.Conv2d
            and (module.kernel_size, module.stride, module.padding, module.groups) == ((3, 3), (1, 1), (1, 1), 1)
            and activation in ("none", "relu")
            and min(module.in_channels, module.out_channels) >= FEWEST_CHANNELS
            and module.in_channels % WINOGRAD_CHANNELS == module.out_channels % WINOGRAD_CHANNELS == 0
        )
        return cls(module, activation == "relu") if fits and isinstance(module, nn.Conv2d) else None

    def pays(self, x: Tensor) -> bool:
        """Tiles must be half full, and not too few: the transformed kernels are four times as large as the plain ones."""
        images, height, width, _ = x.shape
        down, across = -(-height // 4), -(-width // 4)
        return 2 * height * width >= 16 * down * across and images * down * across >= FEWEST_TILES

    def bind(self, x: Tensor, y: Tensor, bias: Tensor, residual: Tensor | None, threads: int) -> Call:
        images, height, width, _ = x.shape
        return Call(
            _kernels("winograd").conveyor_winograd_layer, x.data_ptr(), self.transformed.data_ptr(), bias.data_ptr(),
            None if residual is None else residual.data_ptr(), y.data_ptr(), images, height, width, self.channels,
            self.outputs, self.relu, threads,
        )  # fmt: skip


class Depthwise:
    """A depthwise convolution with bias and activation, and the mean over its result's pixels if that is wanted."""

    def __init__(self, conv: nn.Conv2d, activation: str) -> None:
        assert is_depthwise(conv)
        self.conv, self.activation = conv, _CODES[activation]
        width = _kernels().conveyor_width()
        self.weights = _padded(conv.weight.detach().float().permute(2, 3, 1, 0), width)
        bias = torch.zeros(conv.out_channels) if conv.bias is None else conv.bias.detach().float()
        self.bias = _padded(bias, width)

    def bind(self, x: Tensor, y: Tensor, means: Tensor | None, threads: int) -> list[Call]:
        images, height, width, channels = x.shape
        said = _Depthwise(
            x.data_ptr(), self.weights.data_ptr(), self.bias.data_ptr(), y.data_ptr(),
            None if means is None else means.data_ptr(), images, height, width, channels, *y.shape[1:3],
            self.conv.kernel_size[0], self.conv.stride[0], *before(self.conv, height, width), self.activation, threads,
        )  # fmt: skip
        return [Call(_kernels().conveyor_depthwise_layer, ctypes.addressof(said), alive=said)]


def mean(x: Tensor, y: Tensor, threads: int) -> Call:
    """y [N, C] = the mean of x over its pixels."""
    images, height, width, channels = x.shape
    sizes = images, height * width, channels, x.stride(2)
    return Call(_kernels().conveyor_mean, x.data_ptr(), y.data_ptr(), *sizes, threads)


def takes_gaps(prepared: object) -> bool:
    """Whether this layer's tensors may have pixels further apart than their channels are many."""
    return isinstance(prepared, Convolution) and prepared.winograd is None


def can_pool(pool: nn.MaxPool2d) -> bool:
    """Whether `max_pool` can do it: square windows whose sizes divide with a rest that is left out."""
    numbers = (pool.kernel_size, pool.stride, pool.padding)
    return all(isinstance(each, int) for each in numbers) and pool.dilation == 1 and not pool.ceil_mode


def max_pool(pool: nn.MaxPool2d, x: Tensor, y: Tensor, threads: int) -> Call:
    """y = the largest value of each window of x."""
    return Call(
        _kernels().conveyor_max_pool, x.data_ptr(), y.data_ptr(), *x.shape, *y.shape[1:3], pool.kernel_size, pool.stride,
        pool.padding, threads,
    )  # fmt: skip


def normalise(x: Tensor, table: Tensor, y: Tensor, top: int, left: int, threads: int) -> Call:
    """y = table[channel, value] of the bytes x, inside a border of zeros that y has already."""
    return Call(
        _kernels().conveyor_normalise, x.data_ptr(), table.data_ptr(), y.data_ptr(), *x.shape, *y.shape[1:], top, left,
        threads,
    )  # fmt: skip
