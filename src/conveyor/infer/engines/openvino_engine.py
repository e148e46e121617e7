"""OpenVINO on the CPU, compiled anew for each batch size because fixed shapes are faster."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.infer.engines.engine import Engine, Source, in_batches

MOST_COMPILED = 12
"""Compiled batch sizes kept; beyond, the one compiled first is dropped."""


class OpenVinoEngine(Engine):
    """Float32 arithmetic (the default may choose bfloat16), latency hint: all threads work on one batch.

    Pinning is off: two engines in one process would otherwise be pinned to the same core.
    """

    name = "openvino"

    def __init__(self, source: Source, threads: int, *, batch: int = 1) -> None:
        import openvino

        super().__init__(source.preprocessing.image_shape, threads)
        self._core = openvino.Core()
        if source.openvino is not None or source.onnx is not None:
            self._model = self._core.read_model(str(source.openvino or source.onnx))
        else:
            from conveyor.infer.engines.convert import to_onnx

            assert source.graph is not None
            self._model = self._core.read_model(model=to_onnx(source.graph), weights=b"")
        self._fixed = source.batch
        self._lock = threading.Lock()
        self._requests: dict[int, Any] = {}
        self._request(source.batch or batch)

    def _request(self, batch: int) -> Any:
        found = self._requests.get(batch)
        if found is not None:
            return found
        if self._fixed is None:
            self._model.reshape([batch, *self.image_shape])
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": self.threads,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
        }
        request = self._core.compile_model(self._model, "CPU", settings).create_infer_request()
        while len(self._requests) >= MOST_COMPILED:
            self._requests.pop(next(iter(self._requests)))
        self._requests[batch] = request
        return request

    def _run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        if self._fixed is not None and len(images) != self._fixed:
            return in_batches(self._infer, images, self._fixed)
        return self._infer(images)

    def _infer(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        with self._lock:  # a request holds one batch at a time
            request = self._request(len(images))
            request.infer([images], share_inputs=True)
            result: NDArray[np.float32] = np.array(request.get_output_tensor(0).data)
        return result

    def close(self) -> None:
        self._requests.clear()
