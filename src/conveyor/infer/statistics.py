"""Throughput and latency as numbers: what is dropped, what is averaged. No torch here."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

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


def without_first(values: Sequence[Any]) -> Sequence[Any]:
    """The values that count: the first one pays for warming up, unless it is the only one."""
    return values[1:] if len(values) > 1 else values


@dataclasses.dataclass(frozen=True, slots=True)
class Throughput:
    """All repeats of a measurement; the first one is reported but not averaged."""

    repeats: tuple[Repeat, ...]

    @property
    def _rates(self) -> list[float]:
        return [repeat.images_per_second for repeat in without_first(self.repeats)]

    @property
    def images_per_second(self) -> float:
        """The mean of the repeats' rates, the first one left out."""
        return statistics.fmean(self._rates)

    @property
    def spread(self) -> float:
        """Standard deviation of the counted rates, 0 for a single one."""
        return statistics.stdev(self._rates) if len(self._rates) > 1 else 0.0

    @property
    def latency(self) -> Latency:
        return Latency.of([value for repeat in without_first(self.repeats) for value in repeat.latencies])
