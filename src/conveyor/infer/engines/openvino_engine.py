"""OpenVINO on the CPU, compiled for each batch size because fixed shapes are faster."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.infer.engines import signal_stack
from conveyor.infer.engines.engine import Engine, Source
from conveyor.measure.processor import multiplies_bfloat16

MOST_COMPILED = 12
"""Compiled batch sizes kept; beyond, the one compiled first is dropped."""
AT_ONCE = 8
"""Images that a core takes at a time: more of them leave its cache."""


class _Model:
    """A model as OpenVINO reads it, compiled for one batch size after the other.

    float32 is asked for by name, as OpenVINO's default on a processor with bfloat16 is bfloat16. What an 8-bit model leaves
    unquantised runs in bfloat16 where the processor multiplies it. Pinning is off: two engines in one process would
    otherwise be pinned to the same core.
    """

    def __init__(self, source: Source, threads: int, streams: int) -> None:
        import openvino

        self._core = openvino.Core()
        if source.openvino is not None or source.onnx is not None:
            self._model = self._core.read_model(str(source.openvino or source.onnx))
        else:
            from conveyor.infer.engines.convert import to_onnx

            assert source.graph is not None
            self._model = self._core.read_model(model=to_onnx(source.graph), weights=b"")
        self._shape = None if source.batch is not None else source.preprocessing.image_shape
        half = source.precision == "bfloat16" or (source.precision == "int8" and multiplies_bfloat16())
        self._settings = {
            "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
            "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": streams,
            "ENABLE_CPU_PINNING": False,
        }

    def compiled(self, batch: int) -> Any:
        if self._shape is not None:
            self._model.reshape([batch, *self._shape])
        with signal_stack.kept():
            return self._core.compile_model(self._model, "CPU", self._settings)


class OpenVinoEngine(Engine):
    """All threads work on one batch."""

    name = "openvino"

    def __init__(self, source: Source, threads: int, *, batch: int = 1) -> None:
        super().__init__(source.preprocessing.image_shape, threads, source.batch)
        self._model = _Model(source, threads, streams=1)
        self._lock = threading.Lock()
        self._requests: dict[int, Any] = {}
        self._request(source.batch or batch)

    def _request(self, batch: int) -> Any:
        return _kept(self._requests, batch, lambda: self._model.compiled(batch).create_infer_request())

    def _run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        with self._lock:  # a request holds one batch at a time
            request = self._request(len(images))
            request.infer([images], share_inputs=True)
            result: NDArray[np.float32] = np.array(request.get_output_tensor(0).data)
        return result

    def close(self) -> None:
        self._requests.clear()


class OpenVinoPerCoreEngine(Engine):
    """Every core computes images of its own, up to `AT_ONCE` at a time; no core waits for another inside a layer."""

    name = "openvino-per-core"

    def __init__(self, source: Source, threads: int, *, batch: int = 1) -> None:
        super().__init__(source.preprocessing.image_shape, threads)
        self._model = _Model(source, threads, streams=threads)
        self._most = AT_ONCE if source.batch is None else 1
        self._lock = threading.Lock()
        self._requests: dict[int, list[Any]] = {}
        for part in even_parts(batch, threads, self._most):
            self._of_size(part.stop - part.start)

    def _of_size(self, size: int) -> list[Any]:
        """A request for each core. Without callbacks in Python: a thread of OpenVINO that waits for the interpreter to run
        one, while the interpreter waits for that thread to end, would never end."""

        def made() -> list[Any]:
            compiled = self._model.compiled(size)
            return [compiled.create_infer_request() for _ in range(self.threads)]

        return list(_kept(self._requests, size, made))

    def _run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        parts = even_parts(len(images), self.threads, self._most)
        answers = []
        with self._lock:
            for first in range(0, len(parts), self.threads):
                running = []
                for place, part in enumerate(parts[first : first + self.threads]):
                    request = self._of_size(part.stop - part.start)[place]
                    request.start_async([images[part]], share_inputs=True)
                    running.append(request)
                for request in running:
                    request.wait()
                    answers.append(np.array(request.get_output_tensor(0).data))
        return np.concatenate(answers)

    def close(self) -> None:
        self._requests.clear()


def _kept(compiled: dict[int, Any], size: int, make: Any) -> Any:
    """The entry for `size`, made when it is missing; the oldest one goes when there are too many."""
    if size not in compiled:
        while len(compiled) >= MOST_COMPILED:
            compiled.pop(next(iter(compiled)))
        compiled[size] = make()
    return compiled[size]


def even_parts(count: int, workers: int, most: int) -> list[slice]:
    """`count` things in parts of at most `most`, a multiple of `workers` of them where there are enough, nearly equal.

    >>> [part.stop - part.start for part in even_parts(10, 2, 4)]
    [2, 3, 2, 3]
    """
    parts = min(count, -(-count // (workers * most)) * workers)
    return [slice(count * part // parts, count * (part + 1) // parts) for part in range(parts)]
