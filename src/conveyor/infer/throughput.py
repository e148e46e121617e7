"""How many images a second, and how long each batch takes: the measurement behind `validate --generated-data`."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from conveyor.infer.engines import auto
from conveyor.infer.engines.engine import Engine, Source, open_named
from conveyor.infer.engines.replicas import Replicas
from conveyor.measure.latency import Latency


@dataclasses.dataclass(frozen=True, slots=True)
class Repeat:
    """One pass over the data."""

    images: int
    seconds: float
    latencies: tuple[float, ...]
    """Seconds of each batch."""

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds

    def text(self, number: int) -> str:
        return f"repeat {number}: throughput: {self.images_per_second:.2f} samples/sec"


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """All repeats of a measurement, and what it was made with. The first one pays for warming up: it counts only if alone."""

    repeats: Sequence[Repeat]
    note: str = ""

    @property
    def _counted(self) -> Sequence[Repeat]:
        return self.repeats[1:] if len(self.repeats) > 1 else self.repeats

    @property
    def images_per_second(self) -> float:
        return statistics.fmean(repeat.images_per_second for repeat in self._counted)

    @property
    def spread(self) -> float:
        """Standard deviation of the counted rates, 0 for a single one."""
        rates = [repeat.images_per_second for repeat in self._counted]
        return statistics.stdev(rates) if len(rates) > 1 else 0.0

    @property
    def latency(self) -> Latency:
        return Latency.of([value for repeat in self._counted for value in repeat.latencies])

    def lines(self) -> list[str]:
        """The averages."""
        several = f"standard deviation {self.spread:.2f}, first repeat left out"
        note = several if len(self.repeats) > 1 else "one repeat, warm-up included"
        return [f"throughput: {self.images_per_second:.2f} samples/sec ({note})", self.latency.text()]


def measure(
    source: Source,
    *,
    batch: int,
    repeat: int,
    engine: str,
    replicas: int,
    cores: int,
    batches_per_repeat: int | None = None,
    seconds_per_repeat: float = 1.0,
    on_repeat: Callable[[int, Repeat], None] = lambda number, repeat: None,
) -> Measured:
    """Throughput and latency of a model on random images made once on the host.

    `replicas` engines share the cores and work on different batches. A repeat lasts `batches_per_repeat` batches of
    each replica, or, without it, until `seconds_per_repeat` have passed.
    """
    images = np.random.default_rng(0).integers(0, 256, (batch, *source.preprocessing.image_shape), dtype=np.uint8)
    note = f"engine {engine}"
    if engine == "auto":
        choice = auto.choose(source, batch=batch, threads=max(1, cores // replicas))
        engine, note = choice.engine, choice.text()
    with Replicas(lambda threads: open_named(source, engine, batch=batch, threads=threads), cores, replicas) as group:
        for future in [group.submit(lambda engine: engine(images)) for _ in range(2 * replicas)]:
            future.result()
        repeats = []
        for number in range(repeat):
            repeats.append(_one_repeat(group, images, batches_per_repeat, seconds_per_repeat))
            on_repeat(number, repeats[-1])
    return Measured(repeats, note)


def _one_repeat(group: Replicas, images: Any, batches: int | None, seconds: float) -> Repeat:
    start = time.perf_counter()

    def work(engine: Engine) -> list[float]:
        taken: list[float] = []
        while len(taken) < batches if batches is not None else not taken or time.perf_counter() - start < seconds:
            before = time.perf_counter()
            engine(images)
            taken.append(time.perf_counter() - before)
        return taken

    futures = [group.submit(work) for _ in group.engines]
    latencies = [value for future in futures for value in future.result()]
    return Repeat(len(latencies) * len(images), time.perf_counter() - start, tuple(latencies))
