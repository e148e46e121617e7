"""The one interface of all inference engines, and `open_engine`, which makes one."""

import abc
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from conveyor.errors import UserError, did_you_mean
from conveyor.infer import ENGINES, AnswerPrecision
from conveyor.infer.preprocessing import Preprocessing
from conveyor.layout import usable_cores

if TYPE_CHECKING:
    from torch import Tensor

    from conveyor.infer.graph import ServingGraph
    from conveyor.infer.loaded import Loaded

_logger = logging.getLogger(__name__)


class Engine(abc.ABC):
    """Bytes in, logits out: `engine(images uint8 [N, H, W, C]) -> float32 [N, K]`. Engines never decode files.

    Any N is accepted; one that was named when the engine was opened is fastest.
    """

    name: str = ""

    def __init__(self, image_shape: tuple[int, int, int], threads: int, fixed: int | None = None) -> None:
        """`fixed`: the only batch that `_run` takes."""
        self.image_shape = image_shape
        self.threads = threads
        self._fixed = fixed

    def __call__(self, images: "NDArray[np.uint8] | Tensor") -> NDArray[np.float32]:
        array = images if isinstance(images, np.ndarray) else images.numpy()
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[1:] != self.image_shape:
            wanted = "x".join(str(n) for n in self.image_shape)
            raise ValueError(f"images must be uint8 of shape Nx{wanted}, not {array.dtype} {list(array.shape)}")
        array = np.ascontiguousarray(array)
        if self._fixed is None or len(array) == self._fixed:
            return self._run(array)
        return in_batches(self._run, array, self._fixed)

    @abc.abstractmethod
    def _run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Logits of contiguous images of the right shape."""

    def close(self) -> None:  # noqa: B027 - most engines hold nothing that must be closed
        """Free what the engine holds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """What an engine is made from: a graph to convert, or a file that an export wrote."""

    preprocessing: Preprocessing
    graph: "ServingGraph | None" = None
    onnx: Path | None = None
    openvino: Path | None = None
    batch: int | None = None
    """The only batch that the file takes; none: any."""

    precision: AnswerPrecision = AnswerPrecision.FLOAT32
    """What engines compute in, of `PRECISIONS`; the files of `int8` are quantised, those of `bfloat16` are float32."""

    @classmethod
    def of_file(
        cls, preprocessing: Preprocessing, file: Path, batch: int | None, precision: AnswerPrecision
    ) -> "Source":
        """From an ONNX or OpenVINO file, told apart by its name."""
        kind = "onnx" if file.suffix == ".onnx" else "openvino"
        return cls(preprocessing, batch=batch, precision=precision, **{kind: file})  # type: ignore[arg-type]

    def engines(self) -> tuple[str, ...]:
        """The engines that can run it, of those that are installed."""
        from importlib.util import find_spec

        fitting = []
        any_batch = self.batch in (None, 1)
        converted = self.graph is not None and find_spec("onnxscript") is not None
        if self.graph is not None and self.precision != AnswerPrecision.INT8:
            fitting.append("torch")
        # ONNX Runtime has no bfloat16 convolution on CPUs.
        if (
            (converted or self.onnx is not None)
            and find_spec("onnxruntime")
            and self.precision != AnswerPrecision.BFLOAT16
        ):
            fitting += ["onnxruntime", "onnxruntime-per-core"] if any_batch else ["onnxruntime"]
        if (self.onnx or self.openvino or converted) and find_spec("openvino"):
            fitting += ["openvino", "openvino-per-core"] if any_batch else ["openvino"]
        return tuple(fitting)


def open_engine(model: "Loaded | Source", engine: str = "auto", batch: int = 1, threads: int | None = None) -> Engine:
    """An engine for `model`, made for `batch` images at a time on `threads` cores (all when none is given)."""
    if engine not in ENGINES:
        raise UserError(f"there is no engine {engine!r}{did_you_mean(engine, ENGINES)}")
    source = model if isinstance(model, Source) else model.source
    threads = threads or usable_cores()
    if engine == "auto":
        from conveyor.infer.engines import auto

        choice = auto.choose(source, batch=batch, threads=threads)
        _logger.info("%s", choice.text())
        engine = choice.engine
    return open_named(source, engine, batch=batch, threads=threads)


def open_named(source: Source, engine: str, *, batch: int, threads: int, spin: bool = True) -> Engine:
    """The engine of that name; a `UserError` says why when it cannot run this model here.

    `spin=False` lets waiting threads sleep instead of spinning on cores that other processes need.
    """
    if engine not in source.engines():
        raise UserError(why_not(source, engine))
    if engine == "torch":
        assert source.graph is not None
        from conveyor.infer.engines.torch_engine import TorchEngine

        return TorchEngine(source.graph, threads, half=source.precision == AnswerPrecision.BFLOAT16)
    if engine == "onnxruntime":
        from conveyor.infer.engines.onnxruntime_engine import OnnxRuntimeEngine

        return OnnxRuntimeEngine(source, threads, batch=batch, spin=spin)
    if engine == "onnxruntime-per-core":
        from conveyor.infer.engines.onnxruntime_engine import PerCoreEngine

        return PerCoreEngine(source, threads)
    from conveyor.infer.engines.openvino_engine import OpenVinoEngine

    return OpenVinoEngine(source, threads, batch=batch, per_core=engine == "openvino-per-core")


def why_not(source: Source, engine: str) -> str:
    stored = "an OpenVINO export" if source.openvino else "an ONNX export" if source.onnx else "this model"
    able = ", ".join(source.engines()) or "none"
    needed = "openvino onnx onnxscript" if engine.startswith("openvino") else "onnx onnxscript onnxruntime"
    if engine.endswith("-per-core") and source.batch not in (None, 1):
        return f"the engine {engine} takes one image at a time, {stored} takes {source.batch}: choose from {able}"
    if (source.precision, engine.partition("-")[0]) in (
        (AnswerPrecision.BFLOAT16, "onnxruntime"),
        (AnswerPrecision.INT8, "torch"),
    ):
        return f"the engine {engine} cannot compute in {source.precision}: choose from {able}"
    if source.graph is None and (engine == "torch" or source.openvino):
        return f"the engine {engine} cannot run {stored}: choose from {able}, or export the run in another format"
    return f"the engine {engine} is not installed (pip install {needed}): install it or choose from {able}"


def in_batches(
    run: Callable[[NDArray[np.uint8]], NDArray[np.float32]], images: NDArray[np.uint8], batch: int
) -> NDArray[np.float32]:
    """Run a model of one fixed batch on any number of images: cut, pad the last part with zeros, drop its surplus."""
    parts = []
    for start in range(0, len(images), batch):
        part = images[start : start + batch]
        missing = batch - len(part)
        if missing:
            part = np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)])
        parts.append(run(part)[: batch - missing])
    return np.concatenate(parts)
