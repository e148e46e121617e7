"""The whole benchmark in a fixed time: shares, what is left out, and a tiny run of its parts."""

from pathlib import Path

import pytest

from conveyor.bench import bench_all
from conveyor.bench.budget import Budget
from conveyor.bench.runner import Outcome, Series
from conveyor.bench.spec import Benchmark, Case
from conveyor.bench.tables import newest_records
from conveyor.commands import bench
from conveyor.errors import UserError
from conveyor.measure.rounds import NO_TIME, Program, fitting_steps, run_rounds


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_time_saved_goes_to_the_parts_after_and_time_lost_is_theirs() -> None:
    clock = Clock()
    budget = Budget(100.0, {"a": 1.0, "b": 1.0, "c": 2.0}, clock)
    assert budget.begin("a") == 25.0
    clock.now = 10.0
    assert budget.begin("b") == pytest.approx(30.0)
    assert budget.allows("quick", 30.0)
    assert not budget.allows("slow", 31.0)
    clock.now = 70.0
    assert budget.left() == 0.0
    assert budget.begin("c") == pytest.approx(30.0)
    assert budget.left_out == ["b: slow"]


@pytest.mark.parametrize(("seconds", "expected"), [(1000.0, 4), (30.0, 3), (10.0, 1), (7.0, 1), (0.1, 1)])
def test_steps_are_given_up_before_rounds(seconds: float, expected: int) -> None:
    assert fitting_steps(seconds, 2.0, rounds=5, steps=4) == expected


def test_a_program_without_time_to_start_is_absent() -> None:
    measured = run_rounds([Program("late", ["false"])], rounds=2, steps=1, threads=1, seconds=0.0)
    assert measured.absent == {"late": NO_TIME}


def test_every_part_can_be_asked_for() -> None:
    assert set(bench_all.RUN) == set(bench.PARTS)


def test_a_part_that_is_refused_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def refused(plan: bench_all.Plan, budget: Budget) -> None:
        raise UserError("there is no engine")

    monkeypatch.setattr(bench_all, "RUN", {"limits": refused})
    plan = bench_all.Plan(tmp_path, 1, 2, said.append, parts=("limits",))
    assert bench_all.measure(plan, 1.0) == ["limits: there is no engine"]
    assert not any("Traceback" in text for text in said)


def test_a_part_that_fails_is_named_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(plan: bench_all.Plan, budget: Budget) -> None:
        raise RuntimeError("no such thing")

    ran: list[str] = []
    parts = {"limits": broken, "growth": lambda plan, budget: ran.append("growth")}
    monkeypatch.setattr(bench_all, "RUN", parts)
    plan = bench_all.Plan(tmp_path, 1, 2, lambda text: None, parts=("limits", "growth"))
    assert bench_all.measure(plan, 1.0) == ["limits: failed with RuntimeError: no such thing"]
    assert ran == ["growth"]
    record = newest_records(tmp_path / "records")["bench-all"]
    assert record.conditions["left out"] == ["limits: failed with RuntimeError: no such thing"]


def test_growth_runs_what_fits(tmp_path: Path) -> None:
    budget = Budget(0.0, {"growth": 1.0})
    budget.begin("growth")
    bench_all.growth(bench_all.Plan(tmp_path, 1, 2, lambda text: None), budget)
    assert any("batch" in line for line in budget.left_out)
    assert not (tmp_path / "records").exists()


def test_more_rounds_of_whole_tables_the_quickest_first_as_long_as_they_fit() -> None:
    clock = Clock()
    budget = Budget(100.0, {"growth": 1.0}, clock)
    budget.begin("growth")
    durations = {("slow", "1"): 20.0, ("slow", "2"): 30.0, ("quick", "1"): 4.0, ("quick", "2"): 6.0, ("bad", "1"): 1.0}
    series = []
    for (benchmark, value), seconds in durations.items():
        case = Case(benchmark, {"n": value}, ["x"], {}, Path())
        outcome = Outcome(case, seconds, failure="broken" if benchmark == "bad" else "")
        series.append(Series(Benchmark(benchmark, "x"), case, [outcome]))
    series.append(Series(Benchmark("late", "x"), Case("late", {}, ["x"], {}, Path())))  # never run: there was no time
    ran: list[str] = []

    def run(one: Series) -> None:
        ran.append(one.case.name)
        one.outcomes.append(one.outcomes[0])
        clock.now += one.outcomes[0].seconds

    bench_all.repeat(series, budget, 4, run)
    quick, slow = ["quick[n=2]", "quick[n=1]"], ["slow[n=2]", "slow[n=1]"]
    assert ran == [*quick, *slow, *reversed(quick), *quick]  # 10 + 50 + 10 + 10 s; another 50 would not fit
    assert clock.now == 80.0


def test_the_loaders_become_a_record(tmp_path: Path) -> None:
    budget = Budget(200.0, {"data": 1.0})
    budget.begin("data")
    bench_all.data(bench_all.Plan(tmp_path, 1, 2, lambda text: None, small=True), budget)
    (record,) = newest_records(tmp_path / "records").values()
    assert record.conditions["files"] == 16
    assert record.results["conveyor rate"].unit == "img/CPU-s"
    assert record.results["ratio to DataLoader + Pillow"].median > 0
