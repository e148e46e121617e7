"""`python -m conveyor.infer.quantize_process ORDER`: one model file to 8 bits, away from the process that asked for it."""

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.errors import UserError
from conveyor.infer.metadata import INPUT


def main(text: str) -> int:
    """Quantise as `ORDER` (JSON: form, file, out, images, batch) says; a user's mistake is exit code 2 and one line."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # the quantisers write their advice to the root logger, warning by warning
    order = json.loads(text)
    quantize = {"openvino": quantize_openvino, "onnx": quantize_onnx}[order["form"]]
    images = np.load(order["images"], allow_pickle=False)
    try:
        next(parts_of(images, order["batch"]))  # too few images are told before anything is read
        quantize(Path(order["file"]), Path(order["out"]), images, order["batch"])
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def parts_of(images: NDArray[np.uint8], batch: int | None) -> Iterator[NDArray[np.uint8]]:
    """Calibration batches of one size: short ones are left out, a fixed batch of the graph is kept."""
    size = batch or 1
    whole = len(images) - len(images) % size
    if whole == 0:
        raise UserError(f"calibration needs at least one batch of {size} images: give more with --calibration-images")
    for start in range(0, whole, size):
        yield images[start : start + size]


# Weights get 7 bits. Processors without the VNNI instructions add two products of 8-bit numbers in 16 bits, which
# saturates with full weights: whole classes are lost, silently. The file may run on such a processor some day.


def quantize_openvino(file: Path, out: Path, images: NDArray[np.uint8], batch: int | None) -> None:
    try:
        import nncf
        import openvino
    except ImportError:
        raise UserError(
            "8-bit OpenVINO models need the packages openvino and nncf: pip install openvino nncf"
        ) from None
    logging.getLogger("nncf").setLevel(logging.ERROR)
    parts = list(parts_of(images, batch))
    quantized = nncf.quantize(
        openvino.Core().read_model(str(file)),
        nncf.Dataset(parts),
        subset_size=len(parts),
        preset=nncf.QuantizationPreset.MIXED,
        advanced_parameters=nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.ENABLE),
    )
    openvino.save_model(quantized, str(out), compress_to_fp16=False)


def quantize_onnx(file: Path, out: Path, images: NDArray[np.uint8], batch: int | None) -> None:
    try:
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError:
        raise UserError(
            "8-bit ONNX models need the packages onnx and onnxruntime: pip install onnx onnxruntime"
        ) from None

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self._parts = parts_of(images, batch)

        def get_next(self) -> dict[str, Any] | None:
            part = next(self._parts, None)
            return None if part is None else {INPUT: part}

    prepared = out.with_name("prepared.onnx")
    quant_pre_process(str(file), str(prepared), skip_symbolic_shape=True)
    quantization.quantize_static(
        str(prepared),
        str(out),
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        reduce_range=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        op_types_to_quantize=["Conv", "Gemm", "MatMul", "Add", "MaxPool", "GlobalAveragePool", "Relu"],
        extra_options={"WeightSymmetric": True, "ActivationSymmetric": False},
    )
    prepared.unlink()


if __name__ == "__main__":
    try:
        code = main(sys.argv[1])
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", file=sys.stderr)
        code = 1
    sys.stderr.flush()
    os._exit(code)  # the file is written: nothing of the libraries' own endings is of use
