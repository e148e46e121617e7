"""Predictions against real runs on this machine: the same layouts, predicted and then trained for some updates."""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from conveyor.errors import UserError
from conveyor.monitor.csvfile import CsvFile
from conveyor.monitor.records import readable_rate
from conveyor.options import Options
from conveyor.plan import text
from conveyor.plan.choose import Proposal, Wanted, propose
from conveyor.plan.costs import Model
from conveyor.plan.hardware import Hardware
from conveyor.plan.planner import Subject

UPDATES = 5
LIMIT_SECONDS = 600
Case = tuple[int, int, int, str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One layout: images per second as predicted and as measured."""

    proposal: Proposal
    measured: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.proposal.images_per_second / self.measured - 1


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
    options: Options, about: Subject, costs: Callable[[int], Model], hardware: Hardware, asked: Wanted, chosen: Sequence[Case],
) -> list[Comparison]:  # fmt: skip
    """Predict each case, run it, and compare. `costs(workers)` are the units' when so many workers are busy."""
    found = []
    for lanes, depth, micro_batch, recompute in dict.fromkeys(chosen):
        one = propose(costs(lanes * depth), hardware, asked, lanes, depth, micro_batch, "1f1b", recompute)
        if one is not None:
            found.append(Comparison(one, measure(options, about, one)))
    return found


def measure(options: Options, about: Subject, one: Proposal, updates: int = UPDATES) -> float:
    """Images per second of a real run on random images: the median over the updates without the first."""
    with tempfile.TemporaryDirectory(prefix="conveyor-plan-") as folder:
        run_dir = Path(folder) / "run"
        run = options.replace(
            model=about.name, image_size=about.image_size, num_classes=about.num_classes, in_channels=about.in_channels,
            data=options.data.data or "cifar10", synthetic_data=True, updates=updates, updates_per_log=1, epochs=None, validation=False,
            checkpoints_per_epoch=0, tensorboard=False, report=False, quiet=True, run_dir=str(run_dir), global_batch_size=None,
            stages=None, splits=(), recompute=(),
        ).replace(**one.train_options())  # fmt: skip
        command = [sys.executable, "-m", *run.command("train")]
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise UserError(f"layout {one.layout} did not finish {updates} updates in {LIMIT_SECONDS} s") from None
        if done.returncode:
            raise UserError(
                f"layout {one.layout} could not be run: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
            )
        rates = [row["images_per_second"] for row in CsvFile(run_dir / "metrics.csv", (), "update").read()[1:]]
    return statistics.median(float(rate) for rate in rates)


def as_text(found: Sequence[Comparison]) -> str:
    rows = [
        [
            one.proposal.layout, str(one.proposal.micro_batch), one.proposal.recompute, readable_rate(one.proposal.images_per_second),
            readable_rate(one.measured), f"{100 * one.error:+.0f} %",
        ]
        for one in found
    ]  # fmt: skip
    return text.table(["layout", "micro-batch", "recompute", "predicted img/s", "measured img/s", "error"], rows)


def as_json(found: Sequence[Comparison]) -> list[dict[str, object]]:
    return [
        {
            "layout": one.proposal.layout, "micro_batch": one.proposal.micro_batch, "recompute": one.proposal.recompute,
            "predicted": one.proposal.images_per_second, "measured": one.measured, "error": one.error,
        }
        for one in found
    ]  # fmt: skip
