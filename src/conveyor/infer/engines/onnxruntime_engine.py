"""ONNX Runtime on the CPU: all cores on the whole batch, or every core on images of its own."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.infer.engines.engine import Engine, Source
from conveyor.infer.metadata import BATCH_DIMENSION


class OnnxRuntimeEngine(Engine):
    """One session with `threads` threads inside operators and none between them.

    The batch that was named when the engine was opened has a session of its own, planned for just that shape; another
    one for any batch is made when one of another size comes.
    """

    name = "onnxruntime"

    def __init__(self, source: Source, threads: int, *, batch: int = 1, spin: bool = True) -> None:
        super().__init__(source.preprocessing.image_shape, threads, source.batch)
        self._model = _model_of(source)
        self._spin = spin
        self._batch = source.batch or batch
        self._lock = threading.Lock()
        self._planned = _Session(self._model, threads, self._batch if source.batch is None else None, spin=spin)
        self._free: _Session | None = None

    def _run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        session = self._planned if len(images) == self._batch else self._free_session()
        return session(images)

    def _free_session(self) -> "_Session":
        with self._lock:  # several threads may bring the first batch of another size
            if self._free is None:
                self._free = _Session(self._model, self.threads, None, spin=self._spin)
            return self._free


class PerCoreEngine(Engine):
    """Every core takes the next image of the batch and runs the whole network on it alone.

    No core waits for another inside a layer, and a layer's output is small enough to stay in the core's cache: faster
    for networks of many light layers, such as EfficientNet. All cores share one session and its weights.
    """

    name = "onnxruntime-per-core"

    def __init__(self, source: Source, threads: int) -> None:
        super().__init__(source.preprocessing.image_shape, threads)
        self._session = _Session(_model_of(source), 1, 1 if source.batch is None else None, spin=False)
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def _run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        answers: list[Any] = [None] * len(images)
        left = iter(range(len(images)))

        def work() -> None:
            for index in left:  # shared by all threads: a free thread takes the next image
                answers[index] = self._session(images[index : index + 1])

        if self._pool is None or len(images) == 1:
            work()
        else:
            for done in [self._pool.submit(work) for _ in range(min(self.threads, len(images)))]:
                done.result()
        return np.concatenate(answers)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def _model_of(source: Source) -> str | bytes:
    """The name of a stored model, or the bytes of a converted one."""
    if source.onnx is not None:
        return str(source.onnx)
    from conveyor.infer.engines.convert import to_onnx

    assert source.graph is not None
    return to_onnx(source.graph)


class _Session:
    """A session of ONNX Runtime for exactly `batch` images; without one, for what the model says. Safe for threads."""

    def __init__(self, model: str | bytes, threads: int, batch: int | None, *, spin: bool) -> None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
        settings.log_severity_level = 3
        settings.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
        if batch is not None:
            settings.add_free_dimension_override_by_name(BATCH_DIMENSION, batch)
        self._session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self._output = self._session.get_outputs()[0].name

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        result: NDArray[np.float32] = self._session.run([self._output], {self._input: images})[0]
        return result
