"""The workers ask each other by time, after the same updates."""

import itertools

import pytest

from conveyor.training.polling import POLL_SECONDS, Polling


def asked(seconds_of: list[float]) -> list[int]:
    """The updates after which a worker asks when update i takes seconds_of[i]."""
    polling, found, since = Polling(0, every=False), [], 0.0
    for done, seconds in enumerate(seconds_of, start=1):
        since += seconds
        if polling.due(done):
            found.append(done)
            polling.answered(done, since)
            since = 0.0
    return found


def test_on_a_cpu_after_every_update() -> None:
    polling = Polling(7, every=True)
    polling.answered(8, 0.001)
    assert all(polling.due(done) for done in (8, 9, 10))


@pytest.mark.parametrize("seconds", [0.0001, 0.003, 0.05, 0.4])
def test_about_once_a_second(seconds: float) -> None:
    points = asked([seconds] * int(40 / seconds))
    steps = [after - before for before, after in itertools.pairwise(points)]
    assert max(steps) * seconds <= POLL_SECONDS
    assert min(steps[20:]) * seconds > POLL_SECONDS / 2 - seconds


def test_slow_updates_are_asked_after_each() -> None:
    assert asked([3.0] * 10) == list(range(1, 11))


def test_a_run_that_goes_on_asks_at_once() -> None:
    assert Polling(500, every=False).due(501)


def test_a_moment_of_speed_is_not_trusted() -> None:
    """At most twice as many updates as before go by: one that is slow for a while is asked soon."""
    points = asked([1e-6] * 100 + [0.5] * 200)
    late = [one for one in points if one > 100]
    assert late[0] <= 200
    assert [after - before for before, after in itertools.pairwise(late[1:])] == [2] * (len(late) - 2)
