"""Failures and checkpoints: how long a run really takes when devices fail, and how often to save.

Failures of the whole job are a Poisson process with mean time between failures M (a device's divided by the number of
devices). A run alternates `interval` seconds of work with a checkpoint of `save` seconds. A failure loses the work since
the last complete checkpoint; it then takes `restart` seconds (during which it may fail again) to go on. A run whose
workers hand over their state in memory is the case of an interval of one update with `save` = 0.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Reliability:
    """Mean time between failures of the job, seconds to save a checkpoint, seconds to restart from one."""

    mtbf: float
    save: float
    restart: float


def young_interval(job: Reliability) -> float:
    """Young's first-order optimum of the work between checkpoints, sqrt(2 C M)."""
    return math.sqrt(2 * job.save * job.mtbf)


def daly_interval(job: Reliability) -> float:
    """Daly's higher-order optimum, sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / 18M) - C; M if saving takes longer than 2 M."""
    if job.save >= 2 * job.mtbf:
        return job.mtbf
    ratio = job.save / (2 * job.mtbf)
    return young_interval(job) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - job.save


def expected_time(job: Reliability, work: float, interval: float) -> float:
    """The exact mean time to finish `work` seconds: M e^(R/M) (e^((interval + C)/M) - 1) per interval."""
    if math.isinf(job.mtbf):
        return work + job.save * work / interval
    try:
        segment = job.mtbf * math.exp(job.restart / job.mtbf) * math.expm1((interval + job.save) / job.mtbf)
    except OverflowError:
        return math.inf
    return segment * work / interval


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one simulated run went through, in seconds."""

    total: float
    work: float
    saving: float
    lost: float
    restarting: float
    failures: int


def simulate_run(
    job: Reliability, work: float, interval: float, rng: np.random.Generator, max_failures: int = 1_000_000
) -> Outcome:
    """One run, failure by failure: between two of them, as many whole segments (work and checkpoint) as there is time for.

    The last segment is as long as the rest of the work and is saved too, so that `expected_time` holds for whole numbers
    of segments.
    """
    clock = done = saving = lost = restarting = 0.0
    failures = 0
    next_failure = rng.exponential(job.mtbf) if math.isfinite(job.mtbf) else math.inf
    while done < work - 1e-9:
        segment = min(interval, work - done)
        end = clock + segment + job.save
        if next_failure >= end:
            step = segment + job.save
            count = 1 if segment < interval else int(min((next_failure - clock) / step, (work - done) / segment))
            clock, done, saving = clock + count * step, done + count * segment, saving + count * job.save
            continue
        lost += next_failure - clock
        clock = next_failure
        while True:
            failures += 1
            if failures > max_failures:
                return Outcome(math.inf, done, saving, lost, restarting, failures)
            next_failure = clock + rng.exponential(job.mtbf)
            if next_failure >= clock + job.restart:
                restarting += job.restart
                clock += job.restart
                break
            restarting += next_failure - clock
            clock = next_failure
    return Outcome(clock, done, saving, lost, restarting, failures)


def simulate_runs(job: Reliability, work: float, interval: float, runs: int = 200, seed: int = 0) -> list[Outcome]:
    """Several independent runs."""
    rng = np.random.default_rng(seed)
    return [simulate_run(job, work, interval, rng) for _ in range(runs)]
