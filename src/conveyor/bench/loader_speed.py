"""How fast images are delivered: stages, CPU time, and the bound that a batch already in memory sets."""

import contextlib
import dataclasses
import resource
import time
from collections.abc import Callable

import psutil
import torch

from conveyor.data import catalogue, open_dataset
from conveyor.data.batch import Batch
from conveyor.data.feed import TrainingFeed
from conveyor.data.transform.prepare import Prepare
from conveyor.numerics.allocator import keep_freed_memory
from conveyor.options import Options
from conveyor.topology import Topology

WARM_UP_BATCHES = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Rate:
    """Images delivered, in wall-clock and CPU seconds (of all threads and child processes)."""

    images: int
    seconds: float
    cpu_seconds: float

    @property
    def per_second(self) -> float:
        return self.images / self.seconds

    @property
    def per_cpu_second(self) -> float:
        return self.images / self.cpu_seconds if self.cpu_seconds > 0 else float("inf")

    def to_json(self) -> dict[str, float]:
        per = {"images_per_second": self.per_second, "images_per_cpu_second": self.per_cpu_second}
        return {"images": self.images, "seconds": self.seconds, **per}


class Clock:
    """Measures a block: `with Clock() as clock: ...`, then `clock.rate(images)`."""

    def __enter__(self) -> "Clock":
        self._wall, self._cpu = time.perf_counter(), cpu_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.cpu = time.perf_counter() - self._wall, cpu_seconds() - self._cpu

    def rate(self, images: int) -> Rate:
        return Rate(images, self.seconds, self.cpu)


def cpu_seconds() -> float:
    """CPU time of this process, its threads and its children, ended or not."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    total = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            times = child.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """The feed alone, the feed with `Prepare`, one cached batch with `Prepare`, and the feed's statistics with warm-up."""

    feed: Rate
    whole: Rate
    bound: Rate
    stages: dict[str, float]


def measure(options: Options, batches: int, threads: int | None = None) -> Measurement:
    """Deliver `batches` training batches, first raw, then prepared; warm-up batches are not counted."""
    keep_freed_memory()  # as a run does
    info = catalogue.info(options.data)
    dataset = open_dataset(options, "train")
    prepare = Prepare(options, info)
    topology = Topology(options.batch.micro_batch_size)

    def deliver(use: Callable[[Batch], object]) -> tuple[Rate, dict[str, float], Batch]:
        feed = TrainingFeed(
            dataset,
            topology,
            updates_per_epoch=max(1, len(dataset) // topology.micro_batch),
            stop_update=batches + WARM_UP_BATCHES,
            seed=options.run.seed,
            shuffle=options.data.shuffle,
            prefetch=options.data.prefetch,
            threads=threads or options.data.loader_threads,
            transform=prepare.on_host(True),
        )
        with feed:
            for _ in range(WARM_UP_BATCHES):
                batch = next(feed)
                use(batch)
            with Clock() as clock:
                for _ in range(batches):
                    batch = next(feed)
                    use(batch)
        return clock.rate(batches * topology.micro_batch), feed.statistics(), batch

    feed_rate, stages, batch = deliver(lambda batch: None)
    whole, _, _ = deliver(lambda batch: prepare(batch, True))
    with Clock() as clock, torch.inference_mode():
        for _ in range(batches):
            prepare(batch, True)
    return Measurement(feed_rate, whole, clock.rate(batches * topology.micro_batch), stages)
