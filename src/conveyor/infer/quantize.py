"""8-bit post-training quantisation with real calibration images and a gate on the accuracy it costs."""

import dataclasses
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conveyor import scratch
from conveyor.errors import UserError
from conveyor.infer.accuracy import Sample, top1
from conveyor.infer.engines import auto
from conveyor.infer.engines.engine import Source, open_named
from conveyor.processes import of_module


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
        if form not in ("onnx", "openvino"):
            raise UserError("8-bit models are written as onnx or openvino: add --format onnx or --format openvino")
        small = file.with_name("int8" + file.suffix)
        quantize_apart(form, file, small, self.calibration, self.batch)
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


def quantize_apart(form: str, file: Path, out: Path, images: NDArray[np.uint8], batch: int | None) -> None:
    """Quantise in a process of its own.

    The quantisers import half a framework, speak to the root logger and have been seen to damage the heap of their
    process, which then crashes much later and elsewhere; should one crash, the caller gets a sentence.
    """
    with scratch.folder("int8") as folder:
        np.save(folder / "images.npy", images)
        order = {"form": form, "file": str(file), "out": str(out), "images": f"{folder}/images.npy", "batch": batch}
        done = subprocess.run(
            of_module("conveyor.infer.quantize_process", json.dumps(order)),
            capture_output=True,
            text=True,
            env={**os.environ, "NNCF_CI": "1"},  # nncf's word for "send no usage statistics"
        )
    if done.returncode == 0:
        return
    words = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
    raise UserError(
        words if done.returncode == 2 else f"the model could not be quantised: {words}; export it without --int8"
    )
