"""One version of a model in service: its description, its engine processes, its queue."""

import asyncio
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.infer.predict import probabilities
from conveyor.infer.preprocessing import Preprocessing
from conveyor.serve.batching import Batcher
from conveyor.serve.metrics import Metrics
from conveyor.serve.pool import Pool
from conveyor.serve.settings import ServeSettings
from conveyor.serve.versions import Version


class ServedModel:
    """One version of a model: started once, closed when its last request is answered."""

    def __init__(self, version: Version, settings: ServeSettings, metrics: Metrics) -> None:
        self.stamp = version.stamp
        self._settings, self._metrics = settings, metrics
        self.pool = Pool(str(version.path), settings, on_restart=metrics.restarts.inc)
        self.batcher: Batcher
        self._watch: asyncio.Task[None]
        self.name = self.version = ""
        self.labels: tuple[str, ...] = ()
        self.sizes: tuple[int, ...] = ()
        self.preprocessing: Preprocessing
        self.described: dict[str, Any] = {}
        self.requests = 0
        """Requests that have chosen this version and are not answered yet."""

    async def start(self, name: str | None = None) -> None:
        """Load the model in all workers, to be served as `name`; raises `UserError` when it cannot be loaded."""
        await self.pool.start()
        described = self.described = self.pool.described
        self.name = name or self._settings.name or described["name"]
        self.version = described["version"]
        self.labels = tuple(described["labels"])
        self.preprocessing = Preprocessing.from_json(described["preprocessing"])
        self.sizes = tuple(described["sizes"])
        self.batcher = Batcher(
            self.pool.run,
            sizes=self.sizes,
            parallel=self.pool.count,
            delay=self._settings.delay_us / 1e6,
            limit=max(self._settings.queue, self.sizes[-1]),
            on_batch=self._metrics.counted_batch,
        )
        self._watch = asyncio.get_running_loop().create_task(self.pool.watch())

    @property
    def num_classes(self) -> int:
        return int(self.described["num_classes"])

    @property
    def abstain_below(self) -> float:
        """See `infer.loaded.Loaded`."""
        return float(self.described.get("abstain_below", 0.0))

    @property
    def thresholds(self) -> list[float] | None:
        """See `infer.loaded.Loaded`."""
        return self.described.get("thresholds")

    def probabilities(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 [N, K]: softmax, or of a multi-label model sigmoids."""
        return probabilities(logits, several=self.thresholds is not None).astype(np.float32)

    def label(self, index: int) -> str:
        return self.labels[index] if index < len(self.labels) else str(index)

    def best(self, probabilities: NDArray[np.float32], count: int = 5) -> list[tuple[int, str, float]]:
        """(number, label, probability) of the most probable classes of one image."""
        order = np.argsort(-probabilities, kind="stable")[:count]
        return [(int(index), self.label(int(index)), float(probabilities[index])) for index in order]

    async def close(self) -> None:
        """Answer every request that has chosen this version, then end the workers."""
        while self.requests:
            await asyncio.sleep(0.005)
        await self.batcher.close()
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await self.pool.stop()
