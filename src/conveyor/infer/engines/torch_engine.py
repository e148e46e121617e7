"""The engine that needs no further library: PyTorch eager, batch norms folded, channels last."""

import numpy as np
import torch
from numpy.typing import NDArray

from conveyor.infer.engines.engine import Engine
from conveyor.infer.graph import ServingGraph


class TorchEngine(Engine):
    """Eager execution under `inference_mode`; with `half`, convolutions and dense layers in bfloat16.

    The number of threads is a setting of the calling thread in OpenMP, so it is set again when another thread calls.
    """

    name = "torch"

    def __init__(self, graph: ServingGraph, threads: int, *, half: bool = False) -> None:
        super().__init__(graph.preprocessing.image_shape, threads)
        self._graph = graph
        self._half = half

    def _run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        if not images.flags.writeable:
            images = images.copy()  # torch has no read-only tensors and would warn
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self._half):
            logits: torch.Tensor = self._graph(torch.from_numpy(images))
        return logits.numpy()
