"""Failures and checkpoints: the event simulation against the closed formulas."""

import math

import numpy as np
import pytest

from conveyor.plan.failures import (
    Reliability,
    daly_interval,
    expected_time,
    simulate_run,
    simulate_runs,
    young_interval,
)

JOB = Reliability(mtbf=4 * 3600, save=60, restart=180)


def best_interval(job: Reliability, tolerance: float = 1e-6) -> float:
    """The interval that minimises `expected_time`, by golden-section search (it has one minimum)."""
    ratio = (math.sqrt(5) - 1) / 2
    low, high = 1e-6 * job.mtbf, 20.0 * max(job.mtbf, young_interval(job))
    one, other = high - ratio * (high - low), low + ratio * (high - low)
    while high - low > tolerance * job.mtbf:
        if log_cost(job, one) < log_cost(job, other):
            high, other = other, one
            one = high - ratio * (high - low)
        else:
            low, one = one, other
            other = low + ratio * (high - low)
    return (low + high) / 2


def log_cost(job: Reliability, interval: float) -> float:
    """log of the time per second of work without the constant factor; the logarithm cannot overflow."""
    x = (interval + job.save) / job.mtbf
    growth = x + math.log1p(-math.exp(-x)) if x > 1 else math.log(math.expm1(x))
    return growth - math.log(interval)


@pytest.mark.parametrize("job", [JOB, Reliability(600, 30, 60), Reliability(1e6, 10, 100)])
def test_daly_is_near_the_true_optimum_and_nearer_than_young(job: Reliability) -> None:
    best = best_interval(job)
    assert daly_interval(job) == pytest.approx(best, rel=0.02)
    assert abs(daly_interval(job) - best) <= abs(young_interval(job) - best)
    assert expected_time(job, 1e5, best) <= min(expected_time(job, 1e5, best * f) for f in (0.9, 1.1))


def test_simulated_runs_take_as_long_as_expected() -> None:
    interval = daly_interval(JOB)
    work = 40 * interval
    times = [outcome.total for outcome in simulate_runs(JOB, work, interval, runs=400, seed=1)]
    error = np.std(times) / np.sqrt(len(times))
    assert abs(np.mean(times) - expected_time(JOB, work, interval)) < 4 * error
    assert error < 0.01 * np.mean(times)


def test_the_simulation_prefers_dalys_interval() -> None:
    def mean(interval: float) -> float:
        return float(np.mean([outcome.total for outcome in simulate_runs(JOB, 400_000, interval, runs=150, seed=2)]))

    best = daly_interval(JOB)
    assert mean(best) < mean(best / 4)
    assert mean(best) < mean(best * 4)


def test_time_is_accounted_for() -> None:
    outcome = simulate_run(JOB, 100_000, 1000, np.random.default_rng(3))
    assert outcome.failures > 0
    assert outcome.total == pytest.approx(outcome.work + outcome.saving + outcome.lost + outcome.restarting)
    assert outcome.work == pytest.approx(100_000)
    assert outcome.saving == pytest.approx(100 * JOB.save)


def test_without_failures_only_checkpoints_cost() -> None:
    safe = Reliability(float("inf"), 10, 100)
    assert simulate_run(safe, 1000, 100, np.random.default_rng(0)).total == pytest.approx(1100)
    assert expected_time(safe, 1000, 100) == pytest.approx(1100)


def test_a_hopeless_run_ends() -> None:
    outcome = simulate_run(Reliability(1.0, 10, 10), 1000, 100, np.random.default_rng(0), max_failures=1000)
    assert outcome.total == float("inf")
