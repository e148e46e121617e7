"""Schedules: dependencies, known makespans, memory in flight."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.errors import UserError
from conveyor.plan.timetable import SCHEDULES, in_flight, order, simulate

times = st.floats(0.1, 5.0)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=20, deadline=None)
@given(data=st.data(), stages=st.integers(1, 5), micro_batches=st.integers(1, 7))
def test_no_pass_starts_before_its_input_or_beside_another(
    schedule: str, data: st.DataObject, stages: int, micro_batches: int
) -> None:
    forward = [data.draw(times) for _ in range(stages)]
    backward = [data.draw(times) for _ in range(stages)]
    sending = [data.draw(times) for _ in range(stages - 1)]
    table = simulate(schedule, forward, backward, micro_batches, sending)
    slack = 1e-9
    for stage in range(stages):
        for index in range(micro_batches):
            if stage:
                assert (
                    table.forward_start[stage, index]
                    >= table.forward_end[stage - 1, index] + sending[stage - 1] - slack
                )
            if stage < stages - 1:
                assert (
                    table.backward_start[stage, index] >= table.backward_end[stage + 1, index] + sending[stage] - slack
                )
            assert table.backward_start[stage, index] >= table.forward_end[stage, index] - slack
        passes = sorted((span["start"], span["end"]) for span in table.spans() if span["stage"] == stage)
        assert len(passes) == 2 * micro_batches
        assert all(end <= start + slack for (_, end), (start, _) in itertools.pairwise(passes))
    work = max(f + b for f, b in zip(forward, backward, strict=True)) * micro_batches
    assert table.makespan >= work - slack


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (2, 8), (4, 8), (4, 2), (8, 32)])
def test_equal_stages_give_the_textbook_makespan_and_bubble(schedule: str, stages: int, micro_batches: int) -> None:
    table = simulate(schedule, [1.0] * stages, [2.0] * stages, micro_batches)
    assert float(table.makespan) == pytest.approx(3.0 * (micro_batches + stages - 1))
    assert table.bubble() == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_sequential_overlaps_nothing() -> None:
    table = simulate("sequential", [1.0, 2.0], [2.0, 4.0], 3, [0.5])
    assert float(table.makespan) == pytest.approx(3 * (9 + 2 * 0.5))


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(stages=st.integers(1, 6), micro_batches=st.integers(1, 9))
def test_micro_batches_kept_are_those_of_the_order(schedule: str, stages: int, micro_batches: int) -> None:
    for stage, most in enumerate(in_flight(schedule, stages, micro_batches)):
        steps = (1 if kind == "F" else -1 for kind, _ in order(schedule, stage, stages, micro_batches))
        assert most == max(itertools.accumulate(steps))


def test_micro_batches_kept() -> None:
    assert in_flight("1f1b", 3, 10**12) == [3, 2, 1]  # without going through them one by one
    assert in_flight("gpipe", 4, 8) == [8, 8, 8, 8]
    assert in_flight("1f1b", 4, 8) == [4, 3, 2, 1]
    assert in_flight("1f1b", 4, 2) == [2, 2, 2, 1]
    assert in_flight("sequential", 4, 8) == [1, 1, 1, 1]


def test_replicas_are_simulated_together_and_apart() -> None:
    slow = np.array([1.0, 1.5, 4.0])
    together = simulate("1f1b", [slow, 2 * slow], [2 * slow, 3 * slow], 5, [0.3])
    for replica, factor in enumerate(slow):
        alone = simulate("1f1b", [factor, 2 * factor], [2 * factor, 3 * factor], 5, [0.3])
        assert together.makespan[replica] == pytest.approx(float(alone.makespan))
        assert together.spans(replica)[7]["end"] == pytest.approx(alone.spans()[7]["end"])


def test_a_wrong_schedule_is_named() -> None:
    with pytest.raises(UserError, match="did you mean 'gpipe'"):
        order("gpip", 0, 1, 1)
