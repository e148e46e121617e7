"""Predictions against real runs on this machine: the same layouts, predicted and then trained for some updates."""

import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conveyor.data.subject import Subject
from conveyor.errors import UserError
from conveyor.monitor.records import readable_rate
from conveyor.monitor.table import format_table
from conveyor.options import Options
from conveyor.plan import planner
from conveyor.plan.choose import Proposal, Wanted, propose
from conveyor.plan.costs import Model
from conveyor.plan.hardware import Hardware
from conveyor.plan.short_run import short_run

UPDATES = 8
ROUNDS = 3
LIMIT_SECONDS = 600
Case = tuple[int, int, int, str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One layout: images per second as predicted and as measured, in each round."""

    proposal: Proposal
    predictions: tuple[float, ...]
    measurements: tuple[float, ...]

    @property
    def predicted(self) -> float:
        return statistics.median(self.predictions)

    @property
    def measured(self) -> float:
        return statistics.median(self.measurements)

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1


def cases(devices: int, micro_batch: int) -> list[Case]:
    """(lanes, depth, micro-batch, recomputation) worth comparing on `devices` workers."""
    half = max(1, micro_batch // 2)
    return [
        (1, 1, micro_batch, "none"),
        (1, 1, micro_batch, "block"),
        (devices, 1, micro_batch, "none"),
        (devices, 1, half, "none"),
        (devices, 1, micro_batch, "block"),
        (1, devices, micro_batch, "none"),
        (1, devices, half, "none"),
        (1, devices, micro_batch, "stage"),
    ]


def compare(
    options: Options, about: Subject, costs: Callable[[int, bool, str], Model], hardware: Hardware, asked: Wanted, chosen: Sequence[Case],
    rounds: int = ROUNDS, report: Callable[[str], None] = lambda text: None,
) -> list[Comparison]:  # fmt: skip
    """Predict and run each case in turn, `rounds` times over, and compare the medians.

    `costs(workers, staged, recompute)` are the units' when so many workers are busy; it is asked before every run, so that
    a machine that changes its speed meanwhile does not count as an error of the prediction.
    """
    proposals: dict[Case, Proposal] = {}
    predicted: dict[Case, list[float]] = {}
    measured: dict[Case, list[float]] = {}
    for number in range(rounds):
        for case in dict.fromkeys(chosen):
            lanes, depth, micro_batch, recompute = case
            model = costs(lanes * depth, depth > 1, recompute)
            one = propose(model, hardware, asked, lanes, depth, micro_batch, "1f1b", recompute)
            if one is None:
                continue
            proposals[case] = one
            predicted.setdefault(case, []).append(one.images_per_second)
            measured.setdefault(case, []).append(measure(options, about, one))
            pair = Comparison(one, (predicted[case][-1],), (measured[case][-1],))
            report(f"round {number + 1}/{rounds}: {' '.join(_cells(pair))}")
    return [Comparison(proposals[case], tuple(predicted[case]), tuple(measured[case])) for case in proposals]


def measure(options: Options, about: Subject, one: Proposal, updates: int = UPDATES) -> float:
    """Images per second of a real run on random images: the median over the updates without the first."""
    run = planner.run_options(options, about).replace(updates=updates, **one.train_options())
    try:
        # Threads that wait sleep in the prediction (see `commands.plan`) as they do in the run.
        found = short_run(run, {"OMP_WAIT_POLICY": "passive"}, LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(f"layout {one.layout} did not finish {updates} updates in {LIMIT_SECONDS} s") from None
    if found.code:
        raise UserError(f"layout {one.layout} could not be run: {found.last_line}")
    return found.rate


def as_text(found: Sequence[Comparison]) -> str:
    titles = ["layout", "micro-batch", "recompute", "predicted img/s", "measured img/s", "error"]
    return format_table(titles, map(_cells, found), rule=False)


def _cells(one: Comparison) -> list[str]:
    return [
        one.proposal.layout, str(one.proposal.micro_batch), one.proposal.recompute, readable_rate(one.predicted),
        readable_rate(one.measured), f"{100 * one.error:+.0f} %",
    ]  # fmt: skip


def as_json(found: Sequence[Comparison]) -> list[dict[str, object]]:
    return [
        {
            "layout": one.proposal.layout, "micro_batch": one.proposal.micro_batch, "recompute": one.proposal.recompute,
            "predicted": one.predicted, "measured": one.measured, "error": one.error,
            "predictions": list(one.predictions), "measurements": list(one.measurements),
        }
        for one in found
    ]  # fmt: skip
