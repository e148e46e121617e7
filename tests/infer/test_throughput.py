import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.infer.throughput import Measured, Repeat
from conveyor.measure.latency import Latency, percentile


def test_percentiles_are_nearest_rank() -> None:
    values = [float(n) for n in range(1, 1001)]
    assert percentile(values, 50) == 500
    assert percentile(values, 99) == 990
    assert percentile(values, 99.9) == 999
    assert percentile([7.0], 50) == 7


def test_latency_is_in_milliseconds() -> None:
    latency = Latency.of([0.003, 0.001, 0.002])
    assert (latency.average, latency.p50, latency.maximum, latency.count) == (pytest.approx(2), 2, 3, 3)
    assert "latency avg: 2.000 ms" in latency.text()


def test_first_repeat_is_left_out_of_the_average() -> None:
    slow, fast = Repeat(10, 10.0, (10.0,)), Repeat(10, 1.0, (0.5, 0.5))
    result = Measured((slow, fast, fast))
    assert result.images_per_second == 10
    assert result.spread == 0
    assert result.latency.maximum == 500
    assert Measured((slow,)).images_per_second == 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=200))
def test_percentiles_are_ordered_and_measured(seconds: list[float]) -> None:
    latency = Latency.of(seconds)
    assert min(seconds) * 1000 <= latency.p50 <= latency.p99 <= latency.p999 <= latency.maximum
    assert latency.p99 in {value * 1000 for value in seconds}
