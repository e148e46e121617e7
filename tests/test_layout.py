"""Dealing slots, choosing lanes, and the sentences when numbers do not fit."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.errors import UserError
from conveyor.layout import (
    Layout,
    Machine,
    choose_layout,
    deal,
    let_idle_threads_sleep,
    parse_layout,
    validation_layout,
)
from conveyor.options.batch import LayoutOptions
from conveyor.topology import Topology


@given(st.integers(1, 200), st.integers(1, 16), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3]))
def test_slots_are_dealt_once_and_evenly(groups: int, lanes: int, span: int, joined: int) -> None:
    dealt = deal(groups * span * joined, span * joined, lanes, span)
    assert [slot for lane in range(lanes) for slot in dealt.slots_of(lane)] == list(range(groups * span * joined))
    if groups >= lanes:
        sizes = [len(one) for one in dealt.lanes]
        assert max(sizes) - min(sizes) <= 1
        assert all(slots.start % span == 0 and slots.stop % span == 0 for slots in map(dealt.slots_of, range(lanes)))


def test_only_a_batch_norm_span_is_cut_and_only_when_allowed() -> None:
    cut = deal(4, 2, 4, span=2)
    assert cut.group_slots == 1
    assert [list(one) for one in cut.lanes] == [[0], [1], [2], [3]]
    idle = deal(4, 2, 3)
    assert idle.group_slots == 2
    assert [list(idle.slots_of(lane)) for lane in range(3)] == [[0, 1], [2, 3], []]


@pytest.mark.parametrize(
    ("topology", "machine", "expected", "word"),
    [
        (Topology(8, 8, 16, 1), Machine(64, 16), "16x1", "exactly as asked"),
        (Topology(4, 64, 4, 4), Machine(64, 16), "4x4", "exactly as asked"),
        (Topology(4, 64, 4, 4), Machine(64, 4), "4x1", "folded"),
        (Topology(4, 64, 4, 4), Machine(2), "2x1", "folded"),
        (Topology(4, 64, 2, 4, depth=2), Machine(64, 4), "2x2", "exactly as asked"),
        (Topology(4, 64, 2, 4, depth=1), Machine(64, 2), "2x1", "exactly as asked"),
        (Topology(32, 1, 1, 1), Machine(2), "1x1", "exactly as asked"),
        (Topology(8, 8, 1, 1), Machine(2), "2x1", "accumulation spread"),
        (Topology(8, 8, 1, 1), Machine(8, 4), "4x1", "accumulation spread"),
    ],
)
def test_default_layouts(topology: Topology, machine: Machine, expected: str, word: str) -> None:
    layout, note = choose_layout(LayoutOptions(), topology, machine)
    assert str(layout) == expected
    assert word in note


def test_threads_share_the_cores() -> None:
    options = LayoutOptions(layout="2x1")
    # By groups, not by lanes: two lanes of this run have the threads that eight lanes of it have.
    assert choose_layout(options, Topology(8, 8), Machine(8))[0] == Layout(2, 1, 1)
    assert choose_layout(options, Topology(8, 8), Machine(8), groups=2)[0] == Layout(2, 1, 4)
    assert choose_layout(LayoutOptions(), Topology(8), Machine(8))[0] == Layout(1, 1, 8)
    assert choose_layout(LayoutOptions(layout="4x1"), Topology(8, 8), Machine(2))[0].threads == 1
    assert choose_layout(LayoutOptions(threads=3), Topology(8), Machine(2))[0].threads == 3


@pytest.mark.parametrize(
    ("layout", "topology", "workers", "words"),
    [
        ("2by1", Topology(8, 8), None, "LANESxDEPTH"),
        ("0x1", Topology(8, 8), None, "LANESxDEPTH"),
        ("1x2", Topology(8, 8), None, "depth 2"),
        ("4x1", Topology(8, 2), None, "4 lanes need at least 4"),
        ("2x1", Topology(8, 8), 3, "started 3"),
    ],
)
def test_layouts_that_do_not_fit(layout: str, topology: Topology, workers: int | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose_layout(LayoutOptions(layout=layout), topology, Machine(4), workers)


def test_parse_layout() -> None:
    assert parse_layout(" 12X3 ") == (12, 3)


@pytest.mark.parametrize(("load", "policy"), [(0.1, None), (50.0, "passive")])
def test_threads_spin_only_on_an_idle_machine(load: float, policy: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    let_idle_threads_sleep()
    assert os.environ.pop("OMP_WAIT_POLICY", None) == policy


@pytest.mark.parametrize(
    ("layout", "batches", "machine", "workers", "expected"),
    [
        ("auto", 12, Machine(8), None, "1x1"),
        ("auto", 320, Machine(8), None, "8x1"),
        ("auto", 40, Machine(8), None, "2x1"),
        ("auto", 320, Machine(8, 4), None, "4x1"),
        ("auto", 1, Machine(2), 4, "4x1"),
        ("2x2", 1, Machine(1), None, "4x1"),
    ],
)
def test_a_validation_gives_every_worker_the_whole_model(
    layout: str, batches: int, machine: Machine, workers: int | None, expected: str
) -> None:
    found, note = validation_layout(LayoutOptions(layout=layout), batches, machine, workers)
    assert str(found) == expected
    assert f"{batches} batch" in note
    with pytest.raises(UserError, match="needs 4 workers"):
        validation_layout(LayoutOptions(layout="2x2"), 9, machine, 3)
