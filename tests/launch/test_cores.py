"""The thread budget."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.launch.cores import Budget, deal_cores, describe, numa_nodes, pin
from conveyor.launch.pin_and_exec import local_budget


@given(workers=st.integers(1, 9), cores=st.integers(1, 40))
def test_cores_are_dealt_without_overlap(workers: int, cores: int) -> None:
    budgets = deal_cores(workers, range(cores))
    assert len(budgets) == workers
    taken = [core for budget in budgets for core in budget.cores]
    assert len(taken) == len(set(taken))
    assert all(budget.threads >= 1 for budget in budgets)
    if workers <= cores:
        assert all(budget.threads == len(budget.cores) == cores // workers for budget in budgets)
    else:
        assert not taken, "more workers than cores: nobody is pinned"


def test_threads_asked_for_hold() -> None:
    assert deal_cores(2, range(4), threads=1) == [Budget((0, 1), 1), Budget((2, 3), 1)]
    assert deal_cores(2, range(4), threads=3) == [Budget((), 3), Budget((), 3)]


def test_no_worker_crosses_a_numa_node() -> None:
    nodes = [(0, 1, 2, 3), (4, 5, 6, 7)]
    budgets = deal_cores(3, range(8), numa=nodes)
    assert [budget.cores for budget in budgets] == [(0, 1), (2, 3), (4, 5, 6, 7)]


def test_numa_nodes_are_read_from_the_system(tmp_path: Path) -> None:
    for number, cores in ((0, "0-1,4"), (1, "2-3,5")):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(cores)
    assert numa_nodes(range(6), tmp_path) == [(0, 1, 4), (2, 3, 5)]
    assert numa_nodes(range(7), tmp_path) == [tuple(range(7))], "a core of no node: the machine does not tell"
    assert numa_nodes((1, 2), tmp_path) == [(1,), (2,)]


def test_the_budget_is_one_line() -> None:
    assert describe([Budget((0,), 1), Budget((1,), 1)]) == "2 workers x 1 thread, pinned to cores 0 | 1"
    assert describe([Budget((0, 1, 2, 3), 4)]) == "1 worker x 4 threads, pinned to cores 0-3"
    assert "not pinned" in describe([Budget((), 2)] * 3)


def test_a_worker_takes_its_own_share() -> None:
    environment = {"LOCAL_RANK": "1", "CONVEYOR_CORES": "0,1;2,3", "CONVEYOR_THREADS": "2;2"}
    mine = local_budget(environment)
    assert (mine["CONVEYOR_CORES"], mine["OMP_NUM_THREADS"]) == ("2,3", "2")
    assert local_budget({"LOCAL_RANK": "0"}) == {}


@pytest.mark.parametrize(
    ("cores", "busy", "policy"), [((2, 3), False, None), ((2, 3), True, "PASSIVE"), ((), False, "PASSIVE")]
)
def test_threads_sleep_only_where_cores_are_shared(
    cores: tuple[int, ...], busy: bool, policy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conveyor.launch.cores.others_want_cores", lambda: busy)
    assert Budget(cores, 2).environment().get("OMP_WAIT_POLICY") == policy


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_pinning_holds_for_the_process() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    try:
        assert pin({"CONVEYOR_CORES": str(core)}) == (core,)
        assert os.sched_getaffinity(0) == {core}
    finally:
        os.sched_setaffinity(0, before)
    assert pin({}) == ()
