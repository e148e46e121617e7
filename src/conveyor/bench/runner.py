"""Runs the cases of a specification in turn; a failing one is reported and the rest goes on."""

import contextlib
import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conveyor.bench.records import Record, Sample, make_record
from conveyor.bench.spec import Benchmark, Case
from conveyor.files import make_parent, write_atomically
from conveyor.layout import parse_layout, usable_cores
from conveyor.measure.rounds import in_turn
from conveyor.monitor.observers import METRICS_FILE_VARIABLE
from conveyor.processes import this_program

RATE = "images_per_second"
NOT_FINITE = ("nan", "inf", "-inf")
"""As `observers.finite` writes them."""


@dataclass(slots=True)
class Outcome:
    """The result of one run of a case."""

    case: Case
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    missing: tuple[str, ...] = ()
    """Metrics that were asked for and not found, though others were."""
    log: Path | None = None
    threads: int = 0
    """Of all its workers together."""

    @property
    def ok(self) -> bool:
        return not self.failure

    @property
    def result(self) -> str:
        return self.failure or (f"ok, but without {', '.join(self.missing)}" if self.missing else "ok")


@dataclass(slots=True)
class Series:
    """A case and the outcomes of its runs so far."""

    benchmark: Benchmark
    case: Case
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no run has failed; one that did would fail again."""
        return all(outcome.ok for outcome in self.outcomes)

    def run(self, folder: Path, report: Callable[[Outcome], None]) -> None:
        """Run the case once more."""
        self.outcomes.append(run_case(self.benchmark, self.case, folder))
        report(self.outcomes[-1])

    def record(self, small: bool) -> Record | None:
        """Every run's metrics; None if there are none."""
        values: dict[str, list[float]] = {}
        for outcome in self.outcomes:
            for metric, value in outcome.metrics.items():
                values.setdefault(metric, []).append(value)
        if not values:
            return None
        samples = {metric: Sample(unit_of(metric), tuple(found)) for metric, found in values.items()}
        return make_record(
            safe_name(self.case.name), samples, benchmark=self.case.benchmark, command=self.case.command,
            parameters=self.case.parameters, small=small, threads=self.outcomes[0].threads,
        )  # fmt: skip


def all_series(benchmarks: Sequence[Benchmark], small: bool) -> list[Series]:
    """Every case of the benchmarks, not run yet."""
    return [Series(benchmark, case) for benchmark in benchmarks for case in benchmark.cases(small)]


@contextlib.contextmanager
def recorded(series: Sequence[Series], folder: Path, small: bool) -> Iterator[list[Record]]:
    """Save what the body of the `with` statement measured when it ends, even if it is interrupted."""
    records: list[Record] = []
    try:
        yield records
    finally:
        records += [record for one in series if (record := one.record(small)) is not None]
        for record in records:
            record.save(folder)


def run_all(
    benchmarks: Sequence[Benchmark],
    *,
    small: bool,
    folder: Path,
    repeats: int = 1,
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> tuple[list[Outcome], list[Record]]:
    """Run every case `repeats` times; the outcomes, and a record for each case that gave a metric.

    The cases take turns (see `measure.rounds.in_turn`).
    """
    series = all_series(benchmarks, small)
    with recorded(series, folder, small) as records:
        for number in range(repeats):
            for one in in_turn(series, number):
                if one.ok:
                    one.run(folder, report)
    return [outcome for one in series for outcome in one.outcomes], records


def run_case(benchmark: Benchmark, case: Case, folder: Path) -> Outcome:
    """Run one command, keep its output in a log file, read its metrics."""
    if not case.folder.is_dir():
        return Outcome(case, 0.0, failure=f"there is no folder {case.folder} to run it in")
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{safe_name(case.name)}.log"
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        metrics_file = Path(scratch) / "metrics.jsonl"
        env = {**os.environ, **case.env, METRICS_FILE_VARIABLE: str(metrics_file)}
        try:
            code, text = _execute(case, env, benchmark.timeout)
        except OSError as error:
            return Outcome(
                case, time.perf_counter() - started, failure=f"cannot start {case.command[0]}: {error.strerror}"
            )
        rows = _rows(metrics_file)
    make_parent(log)
    write_atomically(log, text)
    outcome = Outcome(case, time.perf_counter() - started, log=log, threads=_threads(rows, env))
    if code != 0:
        lines = [line for line in text.splitlines() if line.strip()]
        reason = f"no end within {benchmark.timeout:g} s" if code is None else f"exit code {code}"
        outcome.failure = f"{reason}: {lines[-1].strip() if lines else 'no output'}"
        return outcome
    structured = _structured(rows)
    found = {metric: pattern.read(text) for metric, pattern in benchmark.patterns.items()}
    found |= {metric: structured.get(metric) for metric in benchmark.metrics}
    # A loss that is not a number is no result, and would spoil the record for other readers of JSON.
    outcome.metrics = {metric: value for metric, value in found.items() if value is not None and math.isfinite(value)}
    outcome.missing = tuple(metric for metric in found if metric not in outcome.metrics)
    if outcome.missing and not outcome.metrics:
        outcome.failure = f"it ran, but {', '.join(outcome.missing)} was not found in its output"
    return outcome


def _execute(case: Case, env: dict[str, str], timeout: float | None) -> tuple[int | None, str]:
    """Exit code (None after a time-out) and output; the command's whole process group ends with it."""
    process = subprocess.Popen(
        this_program(case.command),
        cwd=case.folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        _end_group(process.pid)
        output, _ = process.communicate()
        code = None
    finally:
        _end_group(process.pid)
        process.wait()
    return code, output.decode(errors="replace")


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _rows(path: Path) -> list[dict[str, Any]]:
    """The events that the command wrote; one that was killed may have left half a line."""
    rows = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            rows += [row] if isinstance(row, dict) else []
    return rows


def _threads(rows: Sequence[dict[str, Any]], env: Mapping[str, str]) -> int:
    """Threads as a run of ours records them; of another program OMP_NUM_THREADS, else the number of cores."""
    for row in rows:
        if row.get("event") == "start" and {"layout", "threads"} <= set(row.get("spec", ())):
            return math.prod(parse_layout(row["spec"]["layout"])) * int(row["spec"]["threads"])
    told = env.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdecimal() else usable_cores()


def _structured(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The last value of each metric; a rate is the mean of all but the first, which holds the warm-up."""
    found: dict[str, float] = {}
    for row in rows:
        for key, value in row.items():
            if isinstance(value, int | float) or value in NOT_FINITE:
                found[key] = float(value)
    for event in ("validation", "log"):
        rates = [float(row[RATE]) for row in rows if RATE in row and row.get("event", "log") == event]
        if rates:
            kept = rates[1:] or rates
            found[RATE] = sum(kept) / len(kept)
    return found


def table(benchmarks: Sequence[Benchmark], outcomes: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of the closing table."""
    by_name = {benchmark.name: benchmark for benchmark in benchmarks}
    titles: list[str] = []
    for benchmark in benchmarks:
        columns = [title for title, _ in benchmark.output] or [*benchmark.patterns, *benchmark.metrics]
        titles += [title for title in columns if title not in titles]
    rows = []
    for outcome in outcomes:
        benchmark = by_name[outcome.case.benchmark]
        pairs = dict(benchmark.output) or {name: name for name in (*benchmark.patterns, *benchmark.metrics)}
        values: dict[str, float | str] = {**outcome.case.parameters, **outcome.metrics}
        cells = [_cell(values.get(pairs[title])) if title in pairs else "" for title in titles]
        rows.append([outcome.case.name, *cells, f"{outcome.seconds:.1f}", outcome.result])
    return ["benchmark", *titles, "seconds", "result"], rows


def unit_of(metric: str) -> str:
    if "latency" in metric:
        return "ms"
    return {"throughput": "img/s", RATE: "img/s", "accuracy": "%", "memory_mib": "MiB"}.get(metric, "")


def safe_name(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_.=" else "_" for char in name).strip("_")


def _cell(value: float | str | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else value
