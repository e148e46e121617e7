"""Which worker of a lane runs which stages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.errors import UserError
from conveyor.pipeline.assign import LOOPED, Part, assign, is_looped, merge, steps

SCHEDULES = ("gpipe", "1f1b", "sequential", *LOOPED)


@given(stages=st.integers(1, 12), data=st.data(), schedule=st.sampled_from(SCHEDULES))
def test_every_stage_runs_once_and_every_worker_works(stages: int, data: st.DataObject, schedule: str) -> None:
    depth = data.draw(st.integers(1, stages))
    parts = assign(stages, depth, schedule)
    assert [stage for part in parts for stage in part.stages] == list(range(stages))
    assert {part.worker for part in parts} == set(range(depth))
    assert is_looped(parts, depth), "the library's schedules can run it"
    if schedule not in LOOPED:
        sizes = [len(part.stages) for part in parts]
        assert len(parts) == depth
        assert max(sizes) - min(sizes) <= 1


def test_looped_schedules_deal_round_robin() -> None:
    assert assign(4, 2, "interleaved-1f1b") == [Part(0, 0, 1), Part(1, 1, 2), Part(0, 2, 3), Part(1, 3, 4)]
    assert [part.worker for part in assign(5, 2, "looped-bfs")] == [0, 1, 0, 1]


def test_a_mapping_names_the_worker_of_each_stage() -> None:
    assert assign(4, 2, "gpipe", (0, 1, 1, 0)) == [Part(0, 0, 1), Part(1, 1, 3), Part(0, 3, 4)]
    assert not is_looped(assign(4, 2, "gpipe", (0, 1, 1, 0)), 2)
    assert assign(4, 2, "gpipe", (0, 1, 2, 3)) == [Part(0, 0, 2), Part(1, 2, 4)], "four devices folded to two"
    assert merge([0, 0, 1, 0]) == [Part(0, 0, 2), Part(1, 2, 3), Part(0, 3, 4)]


def test_impossible_depths() -> None:
    with pytest.raises(UserError, match="choose 1 to 2"):
        assign(2, 3)
    with pytest.raises(UserError, match="depth of 3"):
        assign(3, 3, "gpipe", (0, 1, 0))


@given(count=st.integers(0, 30), depth=st.integers(1, 6), schedule=st.sampled_from(SCHEDULES))
def test_calls_hold_all_micro_batches(count: int, depth: int, schedule: str) -> None:
    calls = steps(count, depth, schedule)
    assert sum(calls) == count
    for size in calls:
        rounds = max(1, size // depth)
        assert schedule not in ("interleaved-1f1b", "zero-bubble") or size % rounds == 0
    if schedule == "sequential":
        assert set(calls) <= {1}
