"""How many images a second, and how long each batch takes: the measurement behind `validate --generated-data`."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from conveyor.infer.engines.engine import Engine, as_source, open_engine
from conveyor.infer.engines.replicas import Replicas
from conveyor.infer.statistics import Repeat, Throughput
from conveyor.layout import usable_cores


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """The throughput and what it was measured with."""

    engine: str
    note: str
    batch: int
    replicas: int
    threads: int
    throughput: Throughput

    def lines(self) -> list[str]:
        """One line for each repeat, then the averages without the first one."""
        found = [repeat.text(number) for number, repeat in enumerate(self.throughput.repeats)]
        mean, spread = self.throughput.images_per_second, self.throughput.spread
        several = f"standard deviation {spread:.2f}, first repeat left out"
        note = several if len(self.throughput.repeats) > 1 else "one repeat, warm-up included"
        found.append(f"throughput: {mean:.2f} samples/sec ({note})")
        found.append(self.throughput.latency.text())
        return found


def measure(
    model: Any,
    *,
    batch: int,
    repeat: int = 10,
    engine: str = "auto",
    replicas: int = 1,
    cores: int | None = None,
    batches_per_repeat: int | None = None,
    seconds_per_repeat: float = 1.0,
    on_repeat: Callable[[int, Repeat], None] | None = None,
) -> Measured:
    """Throughput and latency of a model (loaded, a source or a serving graph) on random images made once on the host.

    `replicas` engines share the cores and work on different batches. A repeat lasts `batches_per_repeat` batches of
    each replica, or, without it, until `seconds_per_repeat` have passed.
    """
    source = as_source(model)
    cores = cores or usable_cores()
    shape = source.preprocessing.image_shape
    images = np.random.default_rng(0).integers(0, 256, (batch, *shape), dtype=np.uint8)
    threads = max(1, cores // replicas)
    note = f"engine {engine}"
    if engine == "auto":
        from conveyor.infer.engines import auto

        choice = auto.choose(source, batch=batch, threads=threads)
        engine, note = choice.engine, choice.text()
    with Replicas(lambda count: open_engine(source, engine, batch, count), cores, replicas) as group:
        for future in [group.submit(lambda engine: engine(images)) for _ in range(2 * replicas)]:
            future.result()
        repeats = []
        for number in range(repeat):
            repeats.append(_one_repeat(group, images, batches_per_repeat, seconds_per_repeat))
            if on_repeat is not None:
                on_repeat(number, repeats[-1])
    return Measured(engine, note, batch, replicas, threads, Throughput(tuple(repeats)))


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
