"""`python -m conveyor.infer.quantize_process ORDER`: one model file to 8 bits, in a process of its own."""

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.errors import UserError, needed
from conveyor.infer.metadata import INPUT

QUANTIZED = ("Conv", "Gemm", "MatMul", "Add", "MaxPool", "GlobalAveragePool", "Relu", "Clip")
"""ONNX operations that compute in 8 bits."""


def main(text: str) -> int:
    """Quantise as `ORDER` says; a user's mistake is exit code 2 and one line.

    ORDER is JSON: `file` (float32 ONNX), `images`, `batch`, and either `out` (the 8-bit file), `bits` of the weights and the
    nodes `kept` in float, or none of these: then the layers are printed, those that lose most first.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # the quantisers write their advice to the root logger, warning by warning
    order = json.loads(text)
    images = np.load(order["images"], allow_pickle=False)
    try:
        next(parts_of(images, order["batch"]))  # too few images are reported before anything is read
        file = prepared(Path(order["file"]), Path(order["images"]).with_name("prepared.onnx"))
        from conveyor.infer.sensitivity import correct_biases, layer_errors

        if "out" in order:
            correct_biases(file, images, order["batch"], order["bits"], order["kept"])
            quantize(file, Path(order["out"]), images, order["batch"], order["bits"], order["kept"])
        else:
            print(json.dumps(layer_errors(file, images, order["batch"])))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    sys.stdout.flush()
    return 0


def parts_of(images: NDArray[np.uint8], batch: int | None) -> Iterator[NDArray[np.uint8]]:
    """Calibration batches of one size: short ones are left out, a fixed batch of the graph is kept."""
    size = batch or 1
    whole = len(images) - len(images) % size
    if whole == 0:
        raise UserError(f"calibration needs at least one batch of {size} images: give more with --calibration-images")
    for start in range(0, whole, size):
        yield images[start : start + size]


def quantize(
    file: Path, out: Path, images: NDArray[np.uint8], batch: int | None, bits: int, kept: Sequence[str]
) -> None:
    """QDQ form, which ONNX Runtime and OpenVINO both run: activations 8 bits per tensor, weights per output channel.

    Weights get 7 bits where the processor adds two products of 8-bit numbers in 16 bits, which saturates with full
    weights: whole classes are lost, silently.
    """
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self._parts = parts_of(images, batch)

        def get_next(self) -> dict[str, Any] | None:
            part = next(self._parts, None)
            return None if part is None else {INPUT: part}

    quantization.quantize_static(
        str(file),
        str(out),
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        reduce_range=bits == 7,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        op_types_to_quantize=list(QUANTIZED),
        nodes_to_exclude=list(kept),
        extra_options={
            "WeightSymmetric": True,
            "ActivationSymmetric": False,
            "OpTypesToExcludeOutputQuantization": outputs_in_float(file),
        },
    )


def outputs_in_float(file: Path) -> list[str]:
    """Operations whose outputs are not rounded: convolutions, where most of them feed one that computes in float.

    In EfficientNet that is SiLU: rounding before it costs accuracy, and keeps OpenVINO from computing both in one pass (batch
    1 and 16 take 0.67 and 0.54 of the time without). Where ReLU follows, it is part of the rounding.
    """
    import onnx

    graph = onnx.load(str(file), load_external_data=False).graph
    made = {node.output[0] for node in graph.node if node.op_type == "Conv"}
    in_float = {name for node in graph.node if node.op_type not in QUANTIZED for name in node.input} & made
    return ["Conv"] if 2 * len(in_float) > len(made) else []


def prepared(file: Path, out: Path) -> Path:
    """The model with its shapes inferred and constants folded; its nodes are the ones that `kept` names."""
    shapes = needed("onnxruntime.quantization.shape_inference", "an 8-bit model", "export")
    shapes.quant_pre_process(str(file), str(out), skip_symbolic_shape=True)
    return out


if __name__ == "__main__":
    try:
        code = main(sys.argv[1])
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", file=sys.stderr)
        code = 1
    sys.stderr.flush()
    os._exit(code)  # the file is written: the libraries' exit handlers are skipped
