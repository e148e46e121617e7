"""An ONNX model as a SavedModel of TensorFlow: the graph is rebuilt operator by operator.

Tensors keep ONNX's order (N, C, H, W); a convolution or pooling on a CPU takes (N, H, W, C) only, so each of them stands
between two transpositions, of which TensorFlow's graph optimiser removes those that cancel.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.errors import UserError
from conveyor.infer.engines.engine import Engine
from conveyor.infer.metadata import INPUT, OUTPUT

Attributes = Mapping[str, Any]
Operator = Callable[[Any, list[Any], Attributes], Any]


def write_saved_model(onnx_file: Path, folder: Path) -> None:
    """Write the model of `onnx_file` below `folder`: `saved_model.pb` and `variables/`, signature `serving_default`."""
    import onnx

    tf = tensorflow()
    model = onnx.load(str(onnx_file))
    if missing := sorted({node.op_type for node in model.graph.node} - set(OPERATORS)):
        raise UserError(
            f"this model's operators {', '.join(missing)} have no counterpart for a SavedModel: choose another --format"
        )
    given = model.graph.input[0].type.tensor_type.shape.dim
    shape = [dim.dim_value or None for dim in given]
    module = tf.Module()
    module.weights = {}
    values: dict[str, Any] = {}
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim:
            name = f"weight_{len(module.weights)}"
            values[tensor.name] = module.weights[name] = tf.Variable(array, trainable=False, name=name)
        else:
            values[tensor.name] = array  # sizes and axes: numbers of the graph, not weights

    def answer(images: Any) -> dict[str, Any]:
        known: dict[str, Any] = {**values, model.graph.input[0].name: images}
        for node in model.graph.node:
            attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
            inputs = [known[name] if name else None for name in node.input]
            known[node.output[0]] = OPERATORS[node.op_type](tf, inputs, attributes)
        return {OUTPUT: tf.identity(known[model.graph.output[0].name], name=OUTPUT)}

    module.answer = tf.function(answer, autograph=False, input_signature=[tf.TensorSpec(shape, tf.uint8, name=INPUT)])
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.answer})


class SavedModelEngine(Engine):
    """The stored signature, to compare it. Only for what was just written: a graph from elsewhere may touch files."""

    name = "tensorflow"

    def __init__(self, folder: Path, image_shape: tuple[int, int, int], batch: int | None) -> None:
        super().__init__(image_shape, 1, batch)
        self._loaded = tensorflow().saved_model.load(str(folder))  # holds the variables
        self._signature = self._loaded.signatures["serving_default"]

    def _run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._signature(**{INPUT: tensorflow().constant(images)})[OUTPUT].numpy()
        return logits


def tensorflow() -> Any:
    """The module, without what its libraries print to file 2 while they are loaded."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        import tensorflow as tf
    except ImportError:
        raise UserError("exporting as saved-model needs the package tensorflow: pip install tensorflow-cpu") from None
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
    tf.get_logger().setLevel("ERROR")
    return tf


def _whole(value: Any) -> list[int]:
    return [int(number) for number in np.asarray(value).reshape(-1)]


def _windows(attributes: Attributes) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and pads (top, left, bottom, right) of a layer in two dimensions."""
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise UserError("a layer that pads by itself has no counterpart for a SavedModel: choose another --format")
    return (
        list(attributes.get("strides", (1, 1))),
        list(attributes.get("dilations", (1, 1))),
        list(attributes.get("pads", (0, 0, 0, 0))),
    )


def _padded(tf: Any, images: Any, pads: Sequence[int], value: float) -> Any:
    """Images [N, H, W, C] with a border."""
    if not any(pads):
        return images
    return tf.pad(images, [[0, 0], [pads[0], pads[2]], [pads[1], pads[3]], [0, 0]], constant_values=value)


def _last(tf: Any, value: Any) -> Any:
    return tf.transpose(value, [0, 2, 3, 1])


def _first(tf: Any, value: Any) -> Any:
    return tf.transpose(value, [0, 3, 1, 2])


def _convolution(tf: Any, inputs: list[Any], attributes: Attributes) -> Any:
    strides, dilations, pads = _windows(attributes)
    images, kernel = _padded(tf, _last(tf, inputs[0]), pads, 0.0), tf.convert_to_tensor(inputs[1])
    groups, outputs, one = int(attributes.get("group", 1)), int(kernel.shape[0]), int(kernel.shape[1])
    if groups > 1 and one == 1 and strides[0] == strides[1]:
        # [groups * m, 1, h, w] -> [h, w, groups, m]: output g * m + k is channel g with its kernel k.
        kernel = tf.reshape(kernel, [groups, outputs // groups, *kernel.shape[2:]])
        result = tf.nn.depthwise_conv2d(
            images, tf.transpose(kernel, [2, 3, 0, 1]), [1, *strides, 1], "VALID", dilations=dilations
        )
    else:
        kernel = tf.transpose(kernel, [2, 3, 1, 0])
        parts = zip(tf.split(images, groups, axis=3), tf.split(kernel, groups, axis=3), strict=True)
        result = tf.concat([tf.nn.conv2d(x, w, strides, "VALID", dilations=dilations) for x, w in parts], axis=3)
    if len(inputs) > 2 and inputs[2] is not None:
        result = tf.nn.bias_add(result, inputs[2])
    return _first(tf, result)


def _pool(tf: Any, inputs: list[Any], attributes: Attributes, kind: str) -> Any:
    strides, dilations, pads = _windows(attributes)
    size = list(attributes["kernel_shape"])
    images = _last(tf, inputs[0])
    if attributes.get("ceil_mode", 0):
        pads = _for_the_last_window(images.shape[1:3], size, strides, pads)
    average = kind == "AVG"
    ones = tf.ones_like(images[:1, :, :, :1]) if average and any(pads) else None
    result = tf.nn.pool(
        _padded(tf, images, pads, 0.0 if average else float("-inf")), size, kind, strides, "VALID", dilations=dilations
    )
    if ones is not None and not attributes.get("count_include_pad", 0):
        result = result / tf.nn.pool(_padded(tf, ones, pads, 0.0), size, kind, strides, "VALID")
    return _first(tf, result)


def _for_the_last_window(
    sizes: Sequence[int], window: Sequence[int], strides: Sequence[int], pads: Sequence[int]
) -> list[int]:
    """Pads at the far ends so that a last window that is only partly filled counts too."""
    grown = list(pads)
    for axis, size in enumerate(sizes):
        rest = (int(size) + pads[axis] + pads[axis + 2] - window[axis]) % strides[axis]
        grown[axis + 2] += (strides[axis] - rest) % strides[axis]
    return grown


def _instance_norm(tf: Any, inputs: list[Any], attributes: Attributes) -> Any:
    """Mean and variance over everything after the channel, of each image."""
    value, scale, bias = inputs
    axes = list(range(2, len(value.shape)))
    mean, variance = tf.nn.moments(value, axes, keepdims=True)
    shape = [1, -1, *[1] * len(axes)]
    normal = (value - mean) * tf.math.rsqrt(variance + attributes.get("epsilon", 1e-5))
    return normal * tf.reshape(scale, shape) + tf.reshape(bias, shape)


def _batch_norm(tf: Any, inputs: list[Any], attributes: Attributes) -> Any:
    value, scale, bias, mean, variance = inputs
    shape = [1, -1, *[1] * (len(value.shape) - 2)]
    factor = scale * tf.math.rsqrt(variance + attributes.get("epsilon", 1e-5))
    return value * tf.reshape(factor, shape) + tf.reshape(bias - mean * factor, shape)


def _matrix(tf: Any, inputs: list[Any], attributes: Attributes) -> Any:
    product = tf.matmul(
        inputs[0],
        inputs[1],
        transpose_a=bool(attributes.get("transA", 0)),
        transpose_b=bool(attributes.get("transB", 0)),
    ) * attributes.get("alpha", 1.0)
    return product + attributes.get("beta", 1.0) * inputs[2] if len(inputs) > 2 else product


def _reshape(tf: Any, inputs: list[Any], attributes: Attributes) -> Any:
    value, shape = inputs
    if isinstance(shape, np.ndarray) and not attributes.get("allowzero", 0):
        own = tf.shape(value, out_type=tf.int64)
        shape = tf.stack([own[axis] if size == 0 else size for axis, size in enumerate(_whole(shape))])
    return tf.reshape(value, shape)


def _slice(tf: Any, inputs: list[Any], attributes: Attributes) -> Any:
    del tf, attributes
    value, starts, ends = inputs[0], _whole(inputs[1]), _whole(inputs[2])
    axes = _whole(inputs[3]) if len(inputs) > 3 and inputs[3] is not None else list(range(len(starts)))
    steps = _whole(inputs[4]) if len(inputs) > 4 and inputs[4] is not None else [1] * len(starts)
    parts = [slice(None)] * len(value.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        parts[axis] = slice(start, None if end > 2**31 else end, step)
    return value[tuple(parts)]


def _unsqueeze(tf: Any, inputs: list[Any], attributes: Attributes) -> Any:
    del attributes
    value = inputs[0]
    for axis in sorted(_whole(inputs[1])):  # counted in the result
        value = tf.expand_dims(value, axis)
    return value


def _pad(tf: Any, inputs: list[Any], attributes: Attributes) -> Any:
    if attributes.get("mode", b"constant") != b"constant":
        raise UserError("padding other than by a constant has no counterpart for a SavedModel: choose another --format")
    pads = np.reshape(_whole(inputs[1]), (2, -1)).T
    value = float(np.asarray(inputs[2]).reshape(-1)[0]) if len(inputs) > 2 and inputs[2] is not None else 0.0
    return tf.pad(inputs[0], pads.tolist(), constant_values=value)


def _reduce(function: str) -> Operator:
    """Over the axes of the second input, or over all."""

    def reduce(tf: Any, inputs: list[Any], attributes: Attributes) -> Any:
        axes = _whole(inputs[1]) if len(inputs) > 1 and inputs[1] is not None else None
        return getattr(tf, function)(inputs[0], axes, keepdims=bool(attributes.get("keepdims", 1)))

    return reduce


def _clip(tf: Any, inputs: list[Any], attributes: Attributes) -> Any:
    del attributes
    low, high = (inputs[index] if len(inputs) > index else None for index in (1, 2))
    value = inputs[0] if low is None else tf.maximum(inputs[0], low)
    return value if high is None else tf.minimum(value, high)


OPERATORS: dict[str, Operator] = {
    "Add": lambda tf, x, _: x[0] + x[1],
    "AveragePool": lambda tf, x, given: _pool(tf, x, given, "AVG"),
    "BatchNormalization": _batch_norm,
    "Cast": lambda tf, x, given: tf.cast(x[0], {1: tf.float32, 2: tf.uint8, 6: tf.int32, 7: tf.int64}[given["to"]]),
    "Clip": _clip,
    "Concat": lambda tf, x, given: tf.concat(x, given["axis"]),
    "Conv": _convolution,
    "Div": lambda tf, x, _: x[0] / x[1],
    "Expand": lambda tf, x, _: tf.broadcast_to(x[0], tf.broadcast_dynamic_shape(tf.shape(x[0], tf.int64), x[1])),
    "Flatten": lambda tf, x, given: tf.reshape(x[0], [tf.shape(x[0])[0], -1]),
    "Gelu": lambda tf, x, given: tf.nn.gelu(x[0], approximate=given.get("approximate", b"none") == b"tanh"),
    "Gemm": _matrix,
    "GlobalAveragePool": lambda tf, x, _: tf.reduce_mean(x[0], [2, 3], keepdims=True),
    "HardSigmoid": lambda tf, x, given: tf.clip_by_value(x[0] * given["alpha"] + given["beta"], 0.0, 1.0),
    "HardSwish": lambda tf, x, _: x[0] * tf.clip_by_value(x[0] / 6.0 + 0.5, 0.0, 1.0),
    "Identity": lambda tf, x, _: tf.identity(x[0]),
    "InstanceNormalization": _instance_norm,
    "MatMul": _matrix,
    "MaxPool": lambda tf, x, given: _pool(tf, x, given, "MAX"),
    "Mul": lambda tf, x, _: x[0] * x[1],
    "Neg": lambda tf, x, _: -x[0],
    "Pad": _pad,
    "Pow": lambda tf, x, _: tf.pow(x[0], x[1]),
    "Reciprocal": lambda tf, x, _: 1.0 / x[0],
    "ReduceMax": _reduce("reduce_max"),
    "ReduceMean": _reduce("reduce_mean"),
    "ReduceSum": _reduce("reduce_sum"),
    "Relu": lambda tf, x, _: tf.nn.relu(x[0]),
    "Reshape": _reshape,
    "Shape": lambda tf, x, given: tf.shape(x[0], out_type=tf.int64)[given.get("start", 0) : given.get("end")],
    "Sigmoid": lambda tf, x, _: tf.sigmoid(x[0]),
    "Slice": _slice,
    "Sqrt": lambda tf, x, _: tf.sqrt(x[0]),
    "Sub": lambda tf, x, _: x[0] - x[1],
    "Tanh": lambda tf, x, _: tf.tanh(x[0]),
    "Transpose": lambda tf, x, given: tf.transpose(x[0], given["perm"]),
    "Unsqueeze": _unsqueeze,
}
"""ONNX operator -> its result from (tensorflow, inputs, attributes)."""
