"""A network ready for the compiled layers: fused, its weights packed once, the shapes of its tensors known."""

import math
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from conveyor.infer import native_layers as native
from conveyor.infer.engines.fusion import (
    Layer,
    Shapes,
    drop_identities,
    is_convolution,
    is_dense,
    is_depthwise,
    layers_of,
)
from conveyor.infer.graph import ServingGraph
from conveyor.models.layers.layers import GlobalMean

NARROW = 4
"""Up to so many channels a line of the first kernel is one tap."""
CONFLICT, GAP = 1024, 16
"""Pixels so many floats (one page) apart fall into the same places of the first cache; a gap between them helps."""
SMALL_BYTES = 2**20
"""Pictures of this size at most are few enough bytes that several images at a time stay in the cache."""


OPERATIONS = {
    "add", "iadd", "sub", "mul", "imul", "truediv", "cat", "concat", "relu", "relu_", "relu6", "silu", "sigmoid", "hardswish",
    "hardsigmoid", "clamp", "mean", "flatten", "pad", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "dropout",
}  # fmt: skip
"""Functions and methods that take and give one tensor for each image, whatever the number of images."""


def can_run(graph: ServingGraph) -> bool:
    """Whether the network was traced into such operations, its normalisation is a table, and the kernels can be had."""
    return (
        isinstance(graph.network, fx.GraphModule)
        and not graph.per_image
        and graph.copies == 1
        and all(_is_known(node) for node in graph.network.graph.nodes)
        and native.available()
    )


def _is_known(node: fx.Node) -> bool:
    if node.op in ("placeholder", "output", "call_module"):
        return True
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return node.op in ("call_function", "call_method") and name in OPERATIONS


class Network:
    """The layers of a serving graph in order, each with its packed weights, or None where it has none."""

    def __init__(self, graph: ServingGraph) -> None:
        assert isinstance(graph.network, fx.GraphModule)
        self.module = fx.GraphModule(graph.network, graph.network.graph)
        drop_identities(self.module)
        self.preprocessing = graph.preprocessing
        self.shapes = _shapes(self.module, self.preprocessing.in_channels, self.preprocessing.image_size)
        self.layers = layers_of(self.module, self.shapes)
        nodes = list(self.module.graph.nodes)
        self.input, self.output = nodes[0], cast(fx.Node, nodes[-1].args[0])
        self.classes = math.prod(self.shapes[self.output][1:])
        self.table = (torch.arange(256.0).view(-1, 1) * graph.scale + graph.shift).t().contiguous()
        """[channels, 256]: what becomes of a byte."""
        self._first = self._first_convolution()
        self.prepared = [self._prepare(layer) for layer in self.layers]
        self._gapped = self._channels_with_gaps()

    @property
    def num_large(self) -> int:
        """How many layers, from the first on, there are until all pictures are small."""
        sizes = [4 * math.prod(self.shapes[layer.result]) for layer in self.layers]
        return max((number + 1 for number, size in enumerate(sizes) if size > SMALL_BYTES), default=0)

    def border(self) -> tuple[int, int, int, int]:
        """Height and width of the first picture with a border of zeros, and where the image lies in it."""
        height, width, _ = self.preprocessing.image_shape
        conv = self._first
        if conv is None:
            return height, width, 0, 0
        top, left = native.before(conv, height, width)
        seen = [
            (out - 1) * stride + kernel
            for out, stride, kernel in zip(
                self.shapes[self._first_user][2:], conv.stride, conv.kernel_size, strict=True
            )
        ]
        return max(seen[0], top + height), max(seen[1], left + width), top, left

    def gap(self, shape: tuple[int, ...]) -> int:
        """Floats between the pixels of a picture."""
        return GAP if math.prod(shape[2:]) > 1 and shape[1] in self._gapped else 0

    @property
    def _first_user(self) -> fx.Node:
        return next(iter(self.input.users))

    def _first_convolution(self) -> nn.Conv2d | None:
        """The convolution that alone sees the image, if it is one that can take lines of its kernel as taps."""
        conv = next((layer.module for layer in self.layers if layer.node is self._first_user), None)
        if not is_convolution(conv) or len(self.input.users) > 1 or conv.groups > 1 or conv.in_channels > NARROW:
            return None
        return conv

    def _prepare(self, layer: Layer) -> native.Convolution | native.Depthwise | None:
        module = layer.module
        if is_dense(layer, self.shapes):
            return native.Convolution(cast(nn.Linear, module), layer.activation)
        if not is_convolution(module):
            return None
        if is_depthwise(module):
            return native.Depthwise(module, layer.activation)
        return native.Convolution(module, layer.activation, flat=module is self._first)

    def _channels_with_gaps(self) -> set[int]:
        """Numbers of channels that need gaps, if all layers that touch such pictures can take them."""
        found = {shape[1] for shape in self.shapes.values() if len(shape) == 4 and shape[1] % CONFLICT == 0}
        for layer, prepared in zip(self.layers, self.prepared, strict=True):
            if layer.factors is None and (native.takes_gaps(prepared) or isinstance(layer.module, GlobalMean)):
                continue
            shapes = (self.shapes[node] for node in (*layer.needs, layer.result))
            found -= {shape[1] for shape in shapes if len(shape) == 4}
        return found


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: Shapes = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.shapes[n] = tuple(value.shape) if isinstance(value, Tensor) else ()
        return value


def _shapes(module: fx.GraphModule, channels: int, size: int) -> Shapes:
    recorder = _Recorder(module)
    with torch.inference_mode():
        recorder.run(torch.zeros(1, channels, size, size))
    return recorder.shapes
