"""ONNX Runtime on the CPU."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.infer.engine import Engine, Source, in_batches
from conveyor.infer.metadata import BATCH_DIMENSION


class OnnxRuntimeEngine(Engine):
    """One session with `threads` threads inside operators and none between them.

    The batch that was named when the engine was opened has a session of its own, planned for just that shape; another
    one for any batch is made when one of another size comes.
    """

    name = "onnxruntime"

    def __init__(self, source: Source, threads: int, *, batch: int = 1, spin: bool = True) -> None:
        super().__init__(source.preprocessing.image_shape, threads)
        if source.onnx is not None:
            self._model: str | bytes = str(source.onnx)
        else:
            from conveyor.infer.convert import to_onnx

            assert source.graph is not None
            self._model = to_onnx(source.graph)
        self._spin = spin
        self._fixed = source.batch
        self._batch = source.batch or batch
        self._lock = threading.Lock()
        self._planned = self._session(self._batch if source.batch is None else None)
        self._free: Any = None
        self._input = self._planned.get_inputs()[0].name
        self._output = self._planned.get_outputs()[0].name

    def _session(self, batch: int | None) -> Any:
        """A session for exactly `batch` images; none: as the model says."""
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = self.threads
        settings.inter_op_num_threads = 1
        settings.log_severity_level = 3
        settings.add_session_config_entry("session.intra_op.allow_spinning", "1" if self._spin else "0")
        if batch is not None:
            settings.add_free_dimension_override_by_name(BATCH_DIMENSION, batch)
        return onnxruntime.InferenceSession(self._model, settings, providers=["CPUExecutionProvider"])

    def _run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        if self._fixed is not None and len(images) != self._fixed:
            return in_batches(self._session_run, images, self._fixed)
        return self._session_run(images)

    def _session_run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        session = self._planned if len(images) == self._batch else self._free_session()
        result: NDArray[np.float32] = session.run([self._output], {self._input: images})[0]
        return result

    def _free_session(self) -> Any:
        with self._lock:  # several threads may bring the first batch of another size
            if self._free is None:
                self._free = self._session(None)
            return self._free
