"""Cross-validation: a run for each fold, and a summary over them. No torch here."""

import json
from pathlib import Path
from typing import Any

from conveyor.files import write_atomically
from conveyor.measure.paired import mean_and_deviation
from conveyor.monitor.csvfile import read_rows
from conveyor.monitor.table import format_table
from conveyor.options import Options, specs
from conveyor.options.run import METRICS
from conveyor.run import folder as rundir
from conveyor.spec import resolve
from conveyor.training.stopping import Reason

SUMMARY = "folds.json"


def runs(options: Options) -> tuple[Path, list[Options]]:
    """The folder of all folds, and the options of those that are still to be trained (with `--resume auto`)."""
    base = Path(options.run.run_dir) if options.run.run_dir else rundir.choose(resolve(options))
    count = options.data.folds or 0
    every = [options.replace(fold=fold, run_dir=str(base / f"fold-{fold}")) for fold in range(count)]
    return base, [one for one in every if options.run.resume != "auto" or not _is_made(one)]


def _is_made(options: Options) -> bool:
    """Whether this very run came to its end; one that was made with other options is resumed, which refuses or goes on."""
    folder = Path(str(options.run.run_dir))
    if not is_done(folder):
        return False
    before, now = (
        one.flat() for one in (rundir.read_options(folder), rundir.resolved_options(resolve(options), folder))
    )
    return all(before[name] == now[name] for name, spec in specs().items() if spec.about.changes_result)


def summary(base: Path, folds: int) -> str:
    """A table with mean and standard deviation of each figure over the folds; also written to `folds.json`."""
    rows = [last_validation(base / f"fold-{fold}") for fold in range(folds)]
    figures = [name for name in METRICS if all(name in row for row in rows)]
    lines = [[f"fold {number}", *(f"{row[name]:.4f}" for name in figures)] for number, row in enumerate(rows)]
    found: dict[str, Any] = {}
    for name in figures:
        mean, deviation = mean_and_deviation([row[name] for row in rows])
        found[name] = {"mean": mean, "deviation": deviation, "folds": [row[name] for row in rows]}
    for title in ("mean", "deviation"):
        lines.append([title, *(f"{found[name][title] or 0:.4f}" for name in figures)])
    write_atomically(base / SUMMARY, json.dumps(found, indent=1))
    return f"{format_table(['', *figures], lines, rule=False)}\nwritten to {base / SUMMARY}"


def last_validation(run: Path) -> dict[str, float]:
    """The figures of a run's last validation of its own weights."""
    rows = [row for row in read_rows(run / "validation.csv") if row.get("name", "").isdecimal()]
    return {name: float(rows[-1][name]) for name in METRICS if rows and rows[-1].get(name)}


def is_done(run: Path) -> bool:
    """Whether a run came to its own end."""
    return rundir.read_result(run).get("reason") in (Reason.DONE, Reason.TARGET, Reason.PATIENCE)
