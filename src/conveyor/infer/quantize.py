"""8-bit post-training quantisation with real calibration images and a gate on the accuracy it costs."""

import contextlib
import dataclasses
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.errors import UserError
from conveyor.infer import auto
from conveyor.infer.accuracy import Sample, top1
from conveyor.infer.convert import INPUT
from conveyor.infer.engine import Source, open_named


@dataclasses.dataclass(frozen=True, slots=True)
class Quantizer:
    """Replaces a written float32 model by an 8-bit one, or refuses.

    `check` must be labelled images that calibration has not seen; `most_drop` is in percentage points of top-1.
    """

    calibration: NDArray[np.uint8]
    check: Sample
    most_drop: float = 1.0
    batch: int | None = None

    def __call__(self, source: Source, file: Path, form: str) -> list[str]:
        """Quantise `file` in place; the notes say what it costs and what it gains."""
        if form == "torch":
            raise UserError("8-bit models are written as onnx or openvino: add --format onnx or --format openvino")
        small = file.with_name("int8" + file.suffix)
        if form == "openvino":
            _quantize_openvino(file, small, self.calibration, self.batch)
        else:
            _quantize_onnx(file, small, self.calibration, self.batch)
        preprocessing = source.preprocessing
        if form == "openvino":
            before, after = (Source(preprocessing, openvino=each, batch=self.batch) for each in (file, small))
        else:
            before, after = (Source(preprocessing, onnx=each, batch=self.batch) for each in (file, small))
        engine = "openvino" if form == "openvino" else "onnxruntime"
        notes = self._gate(before, after, engine)
        notes.append(self._speed(before, after, engine))
        for suffix in {".xml", ".bin"} if form == "openvino" else {".onnx"}:
            shutil.move(small.with_suffix(suffix), file.with_suffix(suffix))
        return notes

    def _gate(self, before: Source, after: Source, engine: str) -> list[str]:
        size = self.batch or 32
        rates = []
        for each in (before, after):
            opened = open_named(each, engine, batch=size, threads=1)
            rates.append(top1(opened, self.check, size))
            opened.close()
        drop = rates[0] - rates[1]
        said = f"top-1 on {len(self.check)} images: float32 {rates[0]:.2f} %, int8 {rates[1]:.2f} % ({rates[1] - rates[0]:+.2f} points)"
        if drop > self.most_drop:
            raise UserError(
                f"{said}: more than the {self.most_drop:g} points allowed, nothing was written; "
                "allow more with --max-drop or export without --int8"
            )
        return [said]

    def _speed(self, before: Source, after: Source, engine: str) -> str:
        batch = self.batch or 8
        opened = {
            name: open_named(each, engine, batch=batch, threads=1)
            for name, each in (("float32", before), ("int8", after))
        }
        times = auto.measure(opened, batch, seconds=1.0)
        for each in opened.values():
            each.close()
        ratio = times["float32"] / times["int8"]
        said = f"batch {batch} on one core: float32 {times['float32']:.2f} ms, int8 {times['int8']:.2f} ms"
        if ratio > 1:
            return f"{said} ({ratio:.2f} times as fast)"
        return f"{said}: int8 is NOT faster on this processor, float32 may serve you better"


def _parts(images: NDArray[np.uint8], batch: int | None) -> Iterator[NDArray[np.uint8]]:
    """Calibration batches of one size: short ones are left out, a fixed batch of the graph is kept."""
    size = batch or 1
    whole = len(images) - len(images) % size
    if whole == 0:
        raise UserError(f"calibration needs at least one batch of {size} images: give more with --calibration-images")
    for start in range(0, whole, size):
        yield images[start : start + size]


def _quantize_openvino(file: Path, out: Path, images: NDArray[np.uint8], batch: int | None) -> None:
    os.environ.setdefault("NNCF_CI", "1")  # its word for "send no usage statistics"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import nncf
        import openvino
    except ImportError:
        raise UserError(
            "8-bit OpenVINO models need the packages openvino and nncf: pip install openvino nncf"
        ) from None
    logging.getLogger("nncf").setLevel(logging.ERROR)
    parts = list(_parts(images, batch))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = nncf.quantize(
            openvino.Core().read_model(str(file)),
            nncf.Dataset(parts),
            subset_size=len(parts),
            preset=nncf.QuantizationPreset.MIXED,
        )
    openvino.save_model(quantized, str(out), compress_to_fp16=False)


def _quantize_onnx(file: Path, out: Path, images: NDArray[np.uint8], batch: int | None) -> None:
    try:
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError:
        raise UserError(
            "8-bit ONNX models need the packages onnx and onnxruntime: pip install onnx onnxruntime"
        ) from None

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self._parts = _parts(images, batch)

        def get_next(self) -> dict[str, Any] | None:
            part = next(self._parts, None)
            return None if part is None else {INPUT: part}

    prepared = out.with_name("prepared.onnx")
    with _fewer_words(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quant_pre_process(str(file), str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared),
            str(out),
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            op_types_to_quantize=["Conv", "Gemm", "MatMul", "Add", "MaxPool", "GlobalAveragePool", "Relu"],
            extra_options={"WeightSymmetric": True, "ActivationSymmetric": False},
        )
    prepared.unlink()


@contextlib.contextmanager
def _fewer_words() -> Iterator[None]:
    """The quantiser writes its advice to the root logger, warning by warning."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
