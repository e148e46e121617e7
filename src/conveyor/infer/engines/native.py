"""An engine of our own: the network as calls of compiled layers, in memory that is planned beforehand.

Convolutions run with all that follows them in one pass; 3x3 kernels go through Winograd's filtering where that pays. What
there is no compiled layer for is left to PyTorch, operation by operation.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from conveyor.infer.engines.engine import Engine
from conveyor.infer.graph import ServingGraph
from conveyor.infer.native_network import Network
from conveyor.infer.native_plan import Plan

AT_ONCE = 4
"""Images that a core takes at a time."""


class NativeEngine(Engine):
    """Every core computes images of its own.

    Images that would leave more than half of the cores idle are computed by all cores together, layer by layer.
    """

    name = "native"

    def __init__(self, graph: ServingGraph, threads: int) -> None:
        super().__init__(graph.preprocessing.image_shape, threads)
        self._network = Network(graph)
        self._alone: list[dict[int, Plan]] = [{} for _ in range(threads)]
        """Each core's plans by their number of images."""
        self._together: dict[int, Plan] = {}
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._lock = threading.Lock()

    def _run(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        rest = len(images) % self.threads
        together = rest if 2 * rest <= self.threads else 0
        alone = len(images) - together
        answers = np.empty((len(images), self._network.classes), np.float32)
        with self._lock:  # a plan has one set of buffers
            self._each_alone(images[:alone], answers[:alone])
            if together:
                answers[alone:] = self._answer(self._together, images[alone:], self.threads)
        return answers

    def _each_alone(self, images: NDArray[np.uint8], answers: NDArray[np.float32]) -> None:
        shares = iter(even_parts(len(images), self.threads, AT_ONCE))

        def work(plans: dict[int, Plan]) -> None:
            for share in shares:  # shared by all threads: whoever is free takes the next images
                answers[share] = self._answer(plans, images[share], 1)

        if self._pool is None or len(images) < 2:
            work(self._alone[0])
        else:
            for done in [self._pool.submit(work, plans) for plans in self._alone]:
                done.result()

    def _answer(self, plans: dict[int, Plan], images: NDArray[np.uint8], threads: int) -> NDArray[np.float32]:
        with torch.inference_mode():
            if len(images) not in plans:
                plans[len(images)] = Plan(self._network, len(images), threads)
            return plans[len(images)](images)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def even_parts(count: int, workers: int, most: int) -> list[slice]:
    """`count` things in parts of at most `most`, a multiple of `workers` of them where there are enough, nearly equal.

    >>> [part.stop - part.start for part in even_parts(10, 2, 4)]
    [2, 3, 2, 3]
    """
    parts = min(count, -(-count // (workers * most)) * workers)
    return [slice(count * part // parts, count * (part + 1) // parts) for part in range(parts)]
