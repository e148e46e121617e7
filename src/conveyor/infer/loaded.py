"""A model that was loaded for inference, whatever it was stored as."""

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conveyor.infer import AnswerPrecision
from conveyor.infer.engines.engine import Source
from conveyor.infer.preprocessing import Preprocessing

if TYPE_CHECKING:
    from torch import nn


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The network (none for an ONNX or OpenVINO file), the names of its classes and what it expects."""

    module: "nn.Module | None"
    class_names: tuple[str, ...]
    preprocessing: Preprocessing
    spec: dict[str, Any]
    """Plain JSON: `name`, `version`, `num_classes`, `format`, `batch` (none: any), `options`, ..."""
    artifact: Path | None = None
    """The exported file that an engine opens directly."""
    data_dir: str | None = None
    """Where the run had its data; an export does not say."""

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def version(self) -> str:
        return str(self.spec.get("version", "1"))

    @property
    def num_classes(self) -> int:
        return int(self.spec["num_classes"])

    def label(self, index: int) -> str:
        """The name of a class, or its number where names are unknown."""
        return self.class_names[index] if index < len(self.class_names) else str(index)

    @property
    def batch(self) -> int | None:
        """The only batch size that the stored graph takes; none: any."""
        return self.spec.get("batch")

    @property
    def precision(self) -> AnswerPrecision:
        """What an export was made to answer in; float32 for a run."""
        return AnswerPrecision(self.spec.get("precision", AnswerPrecision.FLOAT32))

    @property
    def temperature(self) -> float:
        """What the logits are divided by, from `conveyor export --calibrate`; in an exported file they already are."""
        return float(self.spec.get("temperature", 1.0))

    @property
    def abstain_below(self) -> float:
        """The confidence below which the model gives no answer; 0: it always does."""
        return float(self.spec.get("abstain_below", 0.0))

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """Of a multi-label model: the probability (sigmoid of the logit) from which on it names each class."""
        known = self.spec.get("thresholds")
        return None if known is None else tuple(float(one) for one in known)

    @functools.cached_property
    def source(self) -> Source:
        """What engines are made from; the same object each time, so that a conversion is made once."""
        if self.module is not None:
            from conveyor.infer.graph import serving_graph

            graph = serving_graph(self.module, self.preprocessing, self.temperature)
            return Source(self.preprocessing, graph=graph, precision=self.precision)
        assert self.artifact is not None
        return Source.of_file(self.preprocessing, self.artifact, self.batch, self.precision)
