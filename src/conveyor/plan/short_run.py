"""A training run of a few updates in a process of its own, and what it measured. No torch here."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from conveyor import scratch
from conveyor.monitor.csvfile import read_rows
from conveyor.options import Options
from conveyor.processes import of_module


@dataclass(frozen=True, slots=True)
class ShortRun:
    """How it ended, what it printed, and its rows of metrics.csv."""

    code: int
    output: str
    rows: list[dict[str, str]]

    @property
    def rate(self) -> float:
        """Images per second: the median over the updates without the first, which chooses kernels."""
        return median(float(row["images_per_second"]) for row in self.rows[1:])

    @property
    def memory(self) -> float:
        """The most MiB of a worker."""
        return max(float(row["memory_mib"]) for row in self.rows)

    @property
    def last_line(self) -> str:
        """One that the system killed for lack of memory prints nothing."""
        return (self.output.strip().splitlines() or [f"it ended with code {self.code}"])[-1]


def short_run(options: Options, variables: Mapping[str, str] | None = None, seconds: float | None = None) -> ShortRun:
    """Train with `options`, which say how many updates, and with nothing besides; `seconds` is the time limit."""
    with scratch.folder("run") as folder:
        run = options.replace(
            run_dir=str(folder / "run"), updates_per_log=1, checkpoints_per_epoch=0, validation=False, report=False,
            tensorboard=False, quiet=True,
        )  # fmt: skip
        done = subprocess.run(
            of_module(*run.command("train")), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds,
            env={**os.environ, "COLUMNS": "10000", **(variables or {})},
        )  # fmt: skip
        rows = read_rows(folder / "run" / "metrics.csv")
    return ShortRun(done.returncode, done.stdout, rows)
