"""Throughput and latency as numbers: what is dropped, what is averaged. No torch here."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Latency:
    """Latencies in milliseconds; a percentile is the smallest measured value that at least that share does not exceed."""

    count: int
    average: float
    p50: float
    p99: float
    p999: float
    maximum: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Latency":
        if not seconds:
            raise ValueError("no latency was measured")
        ordered = sorted(value * 1000 for value in seconds)
        return cls(
            count=len(ordered),
            average=math.fsum(ordered) / len(ordered),
            p50=percentile(ordered, 50),
            p99=percentile(ordered, 99),
            p999=percentile(ordered, 99.9),
            maximum=ordered[-1],
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def fields(self) -> dict[str, float]:
        """As validation records name them."""
        return {
            "latency_avg_ms": self.average, "latency_p50_ms": self.p50, "latency_p99_ms": self.p99, "latency_p999_ms": self.p999,
            "latency_max_ms": self.maximum,
        }  # fmt: skip

    def text(self) -> str:
        return (
            f"latency avg: {self.average:.3f} ms, latency 50p: {self.p50:.3f} ms, latency 99p: {self.p99:.3f} ms, "
            f"latency 99p9: {self.p999:.3f} ms, latency max: {self.maximum:.3f} ms"
        )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of ascending values: the ceil(p n / 100)-th of them."""
    rank = math.ceil(round(percent * len(ordered) / 100, 9))
    return ordered[max(rank, 1) - 1]


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
    def images_per_second(self) -> float:
        """The mean of the repeats' rates, the first one left out."""
        rates = [repeat.images_per_second for repeat in without_first(self.repeats)]
        return math.fsum(rates) / len(rates)

    @property
    def spread(self) -> float:
        """Standard deviation of the counted rates, 0 for a single one."""
        rates = [repeat.images_per_second for repeat in without_first(self.repeats)]
        mean = math.fsum(rates) / len(rates)
        return math.sqrt(math.fsum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1)) if len(rates) > 1 else 0.0

    @property
    def latency(self) -> Latency:
        return Latency.of([value for repeat in without_first(self.repeats) for value in repeat.latencies])
