"""The latencies of many passes or requests in a few numbers: the one definition of average and percentiles."""

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
