"""The calls that answer a number of images at a time, with all memory in place beforehand."""

import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from conveyor.infer import native_layers as native
from conveyor.infer.engines.fusion import Layer
from conveyor.infer.native_network import Network
from conveyor.models.layers.layers import GlobalMean

Tensors = dict[fx.Node, Tensor]


class Plan:
    """Buffers for `batch` images, shared by tensors that are not needed at the same time, and the calls that fill them.

    The first layers, whose pictures are large, run image by image: a picture is still in the cache when the next layer
    reads it. The others take all images at once, so that weights are read once for all of them.
    """

    def __init__(self, network: Network, batch: int, threads: int) -> None:
        self.network, self.batch, self.threads = network, batch, threads
        self.images = torch.zeros(batch, *network.preprocessing.image_shape, dtype=torch.uint8)
        self.calls: list[Callable[[], None]] = []
        large = network.num_large if threads == 1 else 0
        height, width, self._top, self._left = network.border()
        channels = network.shapes[network.input][1]
        self._first = torch.zeros(1 if large else batch, height, width, channels)
        """The images as numbers, with a border of zeros."""
        self._memory = _Memory(network)
        self._last_use = self._last_uses()
        handed_on = self._handed_on(large)
        kept = {node: self._memory.tensor(node, batch) for node in handed_on}
        for image in range(batch if large else 0):
            one = slice(image, image + 1)
            tensors = {node: tensor[one] for node, tensor in kept.items()}
            self._add(range(large), self.images[one], tensors)
        self._add(range(large, len(network.layers)), None if large else self.images, kept)
        self.answers = kept[network.output].reshape(batch, -1)

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.images.numpy()[...] = images
        for call in self.calls:
            call()
        return self.answers.numpy()

    def _add(self, numbers: Sequence[int], images: Tensor | None, tensors: Tensors) -> None:
        """The calls of some layers; `images` if they start with the first. New tensors are added to `tensors`."""
        given: set[fx.Node] = set()
        if images is not None:
            tensors[self.network.input] = self._first
            given = set(tensors)
            where = self._first, self._top, self._left
            self.calls.append(native.normalise(images, self.network.table, *where, self.threads))
        batch = len(images) if images is not None else self.batch
        for number in numbers:
            layer, prepared = self.network.layers[number], self.network.prepared[number]
            for node in _results(layer):
                if node not in tensors:
                    tensors[node] = self._memory.tensor(node, batch)
            self.calls += self._bind(layer, prepared, tensors)
            for node in [node for node in tensors if self._last_use.get(node) == number]:
                if node not in given:
                    self._memory.free(tensors[node])

    def _last_uses(self) -> dict[fx.Node, int]:
        """The number of the last layer that needs or makes each tensor; none for the answer."""
        found: dict[fx.Node, int] = {}
        for number, layer in enumerate(self.network.layers):
            found |= dict.fromkeys([*layer.needs, *_results(layer)], number)
        found.pop(self.network.output, None)
        return found

    def _handed_on(self, large: int) -> list[fx.Node]:
        """The tensors that layers before `large` make and later ones need."""
        made = [node for layer in self.network.layers[:large] for node in _results(layer)]
        return [node for node in made if self._last_use.get(node, large) >= large]

    def _bind(
        self, layer: Layer, prepared: native.Convolution | native.Depthwise | None, tensors: Tensors
    ) -> Sequence[Callable[[], None]]:
        x, y, threads = tensors[layer.inputs[0]], tensors[layer.result], self.threads
        if isinstance(prepared, native.Depthwise):
            return prepared.bind(x, y, None if layer.means is None else tensors[layer.means], threads)
        if isinstance(prepared, native.Convolution):
            residual = None if layer.residual is None else _pixels(tensors[layer.residual])
            factors = None if layer.factors is None else tensors[layer.factors].flatten(1)
            return prepared.bind(_pixels(x), _pixels(y), residual, factors, threads)
        if isinstance(layer.module, GlobalMean):
            return [native.mean(x, y, threads)]
        if isinstance(layer.module, nn.MaxPool2d) and native.can_pool(layer.module):
            return [native.max_pool(layer.module, x, y, threads)]
        return [_TorchCall(layer, tensors, y, threads)]


def _results(layer: Layer) -> list[fx.Node]:
    return [layer.result] if layer.means is None else [layer.result, layer.means]


def _pixels(x: Tensor) -> Tensor:
    """[N, C] as pictures of one pixel."""
    return x.view(len(x), 1, 1, -1) if x.dim() == 2 else x


class _Memory:
    """Buffers that serve one tensor after the other."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._free: list[Tensor] = []
        self._used: dict[int, Tensor] = {}
        """Buffers in use by their tensor's address."""

    def tensor(self, node: fx.Node, batch: int) -> Tensor:
        """A tensor [N, H, W, C], or of the node's own shape if that is no picture, in the smallest free buffer that fits."""
        shape = self._network.shapes[node]
        if len(shape) == 4:
            stored: tuple[int, ...] = (batch, *shape[2:], shape[1] + self._network.gap(shape))
        else:
            stored = (batch, *shape[1:])
        size = math.prod(stored)
        fitting = [buffer for buffer in self._free if buffer.numel() >= size]
        buffer = min(fitting, key=Tensor.numel) if fitting else torch.zeros(size)
        self._free = [each for each in self._free if each is not buffer]
        self._used[buffer.data_ptr()] = buffer
        return buffer[:size].view(stored)[..., : shape[1]]

    def free(self, tensor: Tensor) -> None:
        self._free.append(self._used.pop(tensor.data_ptr()))


class _TorchCall:
    """An operation by PyTorch, on tensors that it sees as [N, C, H, W]."""

    def __init__(self, layer: Layer, tensors: Tensors, y: Tensor, threads: int) -> None:
        node = layer.node
        if layer.module is not None:
            self.function: Callable[..., Tensor] = layer.module
        elif node.op == "call_method":
            self.function = getattr(Tensor, str(node.target))
        else:
            self.function = cast(Callable[..., Tensor], node.target)
        self.args, self.kwargs = fx.node.map_arg((node.args, node.kwargs), lambda each: _channels_first(tensors[each]))
        self.y, self.threads = _channels_first(y), threads

    def __call__(self) -> None:
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        self.y.copy_(self.function(*self.args, **self.kwargs))


def _channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2) if x.dim() == 4 else x
