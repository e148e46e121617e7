"""Errors of 8-bit layers: which are largest, to keep these in float when the accuracy check fails; corrected biases."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper

from conveyor.infer.metadata import INPUT

IMAGES = 8
"""Images that errors are measured with: means over all pixels need few."""
BITS = 8


def layer_errors(file: Path, images: NDArray[np.uint8], batch: int | None) -> list[tuple[str, str, float]]:
    """(ONNX node, name of the layer, error) of every convolution and dense layer of a float32 model, the worst first.

    With q rounding to 256 steps between the smallest and largest value of a tensor, and to 255 for each output channel of
    weights, a layer y = f(x, w) becomes q(f(q(x), q(w))); its error is the mean over channels of |y' - y|^2 / |y|^2. A mean
    over channels, since a channel of small values may matter as much as one of large values.
    """
    found = []
    for layer in _layers(onnx.load(str(file)), _spread(images, batch)):
        rounded = _stepped(layer.apply(_stepped(layer.x), layer.rounded(BITS)) + layer.bias)
        power = layer.over_channels(layer.y.square()).sum(1)
        error = layer.over_channels((rounded - layer.y).square()).sum(1)[power > 0] / power[power > 0]
        name = layer.node.input[1].removeprefix("network.").removesuffix(".weight")
        found.append((layer.node.name, name, float(error.mean()) if len(error) else 0.0))
    return sorted(found, key=lambda entry: -entry[2])


def correct_biases(file: Path, images: NDArray[np.uint8], batch: int | None, bits: int, kept: Sequence[str]) -> None:
    """Give each layer's bias what rounding its weights takes from the mean of its outputs: E[f(x, w) - f(x, q(w))].

    Those errors have one sign for a whole channel, add up from layer to layer, and cost more accuracy than the others.
    """
    model = onnx.load(str(file))
    biases = {tensor.name: tensor for tensor in model.graph.initializer}
    for layer in _layers(model, _spread(images, batch)):
        if layer.node.name in kept or len(layer.node.input) < 3 or layer.node.input[2] not in biases:
            continue
        lost = layer.over_channels(layer.apply(layer.x, layer.w) - layer.apply(layer.x, layer.rounded(bits))).mean(1)
        old = numpy_helper.to_array(biases[layer.node.input[2]])
        if old.shape == tuple(lost.shape):
            tensor = numpy_helper.from_array(old + lost.numpy().astype(old.dtype), layer.node.input[2])
            biases[layer.node.input[2]].CopyFrom(tensor)
    onnx.save(model, str(file))


def _spread(images: NDArray[np.uint8], batch: int | None) -> NDArray[np.uint8]:
    """A few of the images, from all of them: neighbours are often of one class."""
    count = batch or min(IMAGES, len(images))
    return images[:: max(1, len(images) // count)][:count]


@dataclasses.dataclass(frozen=True, slots=True)
class _Layer:
    """A convolution or dense layer, its weights, and its inputs and outputs for some images."""

    node: Any
    w: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    about: dict[str, Any]

    @property
    def bias(self) -> torch.Tensor:
        return self.y - self.apply(self.x, self.w)

    def apply(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """The layer without its bias."""
        if self.node.op_type == "Gemm":
            return x @ (w.T if self.about.get("transB") else w)
        top, left, bottom, right = self.about.get("pads", (0, 0, 0, 0))
        padded = torch.nn.functional.pad(x, (left, right, top, bottom))
        strides, dilations = tuple(self.about.get("strides", (1, 1))), tuple(self.about.get("dilations", (1, 1)))
        return torch.nn.functional.conv2d(padded, w, None, strides, 0, dilations, self.about.get("group", 1))

    def rounded(self, bits: int) -> torch.Tensor:
        """The weights in equal steps on each side of zero, for each output channel."""
        channel = 1 if self.node.op_type == "Gemm" and not self.about.get("transB") else 0
        others = [dim for dim in range(self.w.ndim) if dim != channel]
        step = self.w.abs().amax(others, keepdim=True).clamp(min=1e-12) / (127 if bits == BITS else 64)
        return (self.w / step).round() * step

    def over_channels(self, values: torch.Tensor) -> torch.Tensor:
        """[channels, all else] of what has the shape of `y`."""
        return values.transpose(0, 1).flatten(1)


def _layers(model: Any, images: NDArray[np.uint8]) -> Iterator[_Layer]:
    import onnxruntime

    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm") and node.input[1] in weights]
    wanted = list(dict.fromkeys(name for node in nodes for name in (node.input[0], node.output[0])))
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    there = {value.name for value in model.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in there)
    session = onnxruntime.InferenceSession(shown.SerializeToString(), providers=["CPUExecutionProvider"])
    values = dict(zip(wanted, session.run(wanted, {INPUT: images}), strict=True))
    for node in nodes:
        about = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        x, y = torch.from_numpy(values[node.input[0]]), torch.from_numpy(values[node.output[0]])
        yield _Layer(node, torch.from_numpy(weights[node.input[1]].copy()), x, y, about)


def _stepped(x: torch.Tensor) -> torch.Tensor:
    """Rounded to 256 equal steps from the smallest to the largest value, zero being one of them."""
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    step = (high - low).clamp(min=1e-12) / 255
    return (x / step).round() * step
