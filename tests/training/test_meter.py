"""What a log point says of all workers."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from conveyor.layout import deal
from conveyor.training import meter
from conveyor.world.world import World


class WithAnother(World):
    """The first of two workers; the other has seen nothing and needed `memory` MiB."""

    def __init__(self, memory: float) -> None:
        super().__init__(lanes=2)
        self.memory = memory

    def sum_over_all(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor.shape == (2,):
                tensor += torch.tensor([0.0, self.memory], dtype=tensor.dtype)


@pytest.mark.parametrize(("other", "largest"), [(70.0, 100.0), (300.0, 300.0)])
def test_memory_is_that_of_the_largest_worker(other: float, largest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "peak_memory", lambda device: 100.0)
    one = meter.Meter(torch.device("cpu"), WithAnother(other), meter.Timing(), deal(2, 1, 2))
    assert one.read(8)["memory_mib"] == largest


class Event:
    """An event in a queue whose work takes a second each."""

    queued = 0
    waited = False

    def record(self) -> None:
        Event.queued += 1
        self.place = Event.queued

    def synchronize(self) -> None:
        Event.waited = True

    def elapsed_time(self, after: "Event") -> float:
        assert Event.waited
        return 1000.0 * (after.place - self.place)


def test_the_times_of_a_device_are_read_at_log_points_only() -> None:
    clock = meter.DeviceClock(Event)
    timing = meter.Timing()
    timing._clock = clock
    timing.begin()
    for phase in ("data", "forward", "backward", "forward"):
        timing.mark(phase)
    assert not Event.waited
    assert timing.seconds["forward"] == 0
    timing.settle()
    assert (timing.seconds["data"], timing.seconds["forward"], timing.seconds["backward"]) == (1, 2, 1)
    timing.settle()
    assert timing.seconds["forward"] == 2


def test_the_mean_rate_is_that_of_all_periods_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now[0])
    one = meter.Meter(torch.device("cpu"), World(), meter.Timing(), deal(1, 1, 1))
    assert one.mean_rate() == 0.0
    rates = []
    for seconds in (8.0, 1.0, 3.0):
        for _ in range(2):
            one.add(torch.zeros(1, meter.TALLY, dtype=torch.float64))
        now[0] += seconds
        one.read(4)
        rates.append(one.mean_rate())
    assert rates == [1.0, 8.0, 4.0]
