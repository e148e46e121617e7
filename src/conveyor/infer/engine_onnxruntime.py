"""ONNX Runtime on the CPU."""

import numpy as np
from numpy.typing import NDArray

from conveyor.infer.engine import Engine, Source, in_batches


class OnnxRuntimeEngine(Engine):
    """One session with `threads` threads inside operators and none between them."""

    name = "onnxruntime"

    def __init__(self, source: Source, threads: int, *, spin: bool = True) -> None:
        import onnxruntime

        super().__init__(source.preprocessing.image_shape, threads)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
        settings.log_severity_level = 3
        settings.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
        if source.onnx is not None:
            model: str | bytes = str(source.onnx)
        else:
            from conveyor.infer.convert import to_onnx

            assert source.graph is not None
            model = to_onnx(source.graph)
        self._session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self._output = self._session.get_outputs()[0].name
        self._fixed = source.batch

    def _run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        if self._fixed is not None and len(images) != self._fixed:
            return in_batches(self._session_run, images, self._fixed)
        return self._session_run(images)

    def _session_run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        result: NDArray[np.float32] = self._session.run([self._output], {self._input: images})[0]
        return result
