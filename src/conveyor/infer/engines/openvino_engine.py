"""OpenVINO on the CPU, compiled for each batch size because fixed shapes are faster."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.infer import AnswerPrecision
from conveyor.infer.engines import signal_stack
from conveyor.infer.engines.engine import Engine, Source
from conveyor.measure.processor import multiplies_bfloat16

MOST_COMPILED = 12
"""Compiled batch sizes kept; beyond, the one compiled first is dropped."""
AT_ONCE = 8
"""Images that a core takes at a time: more of them leave its cache."""


class OpenVinoEngine(Engine):
    """All threads work on one batch, or `per_core` every core on images of its own, up to `AT_ONCE` at a time.

    Then no core waits for another inside a layer. float32 is asked for by name, as OpenVINO's default on a processor with
    bfloat16 is bfloat16. What an 8-bit model leaves unquantised runs in bfloat16 where the processor multiplies it. Pinning
    is off: two engines in one process would otherwise be pinned to the same core. Requests have no callbacks in Python: a
    thread of OpenVINO that waits for the interpreter to run one, while the interpreter waits for that thread to end, would
    never end.
    """

    def __init__(self, source: Source, threads: int, *, batch: int = 1, per_core: bool = False) -> None:
        import openvino

        super().__init__(source.preprocessing.image_shape, threads, None if per_core else source.batch)
        self.name = "openvino-per-core" if per_core else "openvino"
        self._workers = threads if per_core else 1
        self._most = None if not per_core else AT_ONCE if source.batch is None else 1
        self._core = openvino.Core()
        if source.openvino is not None or source.onnx is not None:
            self._model = self._core.read_model(str(source.openvino or source.onnx))
        else:
            from conveyor.infer.engines.convert import to_onnx

            assert source.graph is not None
            self._model = self._core.read_model(model=to_onnx(source.graph), weights=b"")
        self._any_batch = source.batch is None
        half = source.precision == AnswerPrecision.BFLOAT16 or (
            source.precision == AnswerPrecision.INT8 and multiplies_bfloat16()
        )
        self._settings = {
            "PERFORMANCE_HINT": "LATENCY" if self._workers == 1 else "THROUGHPUT",
            "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": self._workers,
            "ENABLE_CPU_PINNING": False,
        }
        self._lock = threading.Lock()
        self._requests: dict[int, list[Any]] = {}
        for part in self._parts(source.batch or batch):
            self._of_size(part.stop - part.start)

    def _parts(self, count: int) -> list[slice]:
        return even_parts(count, self._workers, self._most or count)

    def _of_size(self, size: int) -> list[Any]:
        """A request for each worker, compiled for `size` images; when there are too many sizes, the first one goes."""
        if size not in self._requests:
            while len(self._requests) >= MOST_COMPILED:
                self._requests.pop(next(iter(self._requests)))
            if self._any_batch:
                self._model.reshape([size, *self.image_shape])
            with signal_stack.kept():
                compiled = self._core.compile_model(self._model, "CPU", self._settings)
            self._requests[size] = [compiled.create_infer_request() for _ in range(self._workers)]
        return self._requests[size]

    def _run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        parts, answers = self._parts(len(images)), []
        with self._lock:  # a request holds one batch at a time
            for first in range(0, len(parts), self._workers):
                running = []
                for place, part in enumerate(parts[first : first + self._workers]):
                    request = self._of_size(part.stop - part.start)[place]
                    request.start_async([images[part]], share_inputs=True)
                    running.append(request)
                for request in running:
                    request.wait()
                    answers.append(np.array(request.get_output_tensor(0).data))
        return answers[0] if len(answers) == 1 else np.concatenate(answers)

    def close(self) -> None:
        self._requests.clear()


def even_parts(count: int, workers: int, most: int) -> list[slice]:
    """`count` things in parts of at most `most`, a multiple of `workers` of them where there are enough, nearly equal.

    >>> [part.stop - part.start for part in even_parts(10, 2, 4)]
    [2, 3, 2, 3]
    """
    parts = min(count, -(-count // (workers * most)) * workers)
    return [slice(count * part // parts, count * (part + 1) // parts) for part in range(parts)]
