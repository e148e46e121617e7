"""Runs the cases of a specification one after the other; a failing one is reported and the rest goes on."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conveyor.bench.records import Record, Sample, make_record
from conveyor.bench.spec import Benchmark, Case
from conveyor.files import write_atomically
from conveyor.monitor.observers import METRICS_FILE_VARIABLE

RATE = "images_per_second"


@dataclass(slots=True)
class Outcome:
    """What came of one case."""

    case: Case
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    log: Path | None = None

    @property
    def ok(self) -> bool:
        return not self.failure


def run_all(
    benchmarks: Sequence[Benchmark],
    *,
    small: bool,
    folder: Path,
    repeats: int = 1,
    report: Callable[[Outcome], None] = lambda outcome: None,
    allowed: Callable[[Case], bool] = lambda case: True,
) -> tuple[list[Outcome], list[Record]]:
    """Run every case that is `allowed` `repeats` times; the outcomes, and a record for each case that gave a metric."""
    outcomes: list[Outcome] = []
    records: list[Record] = []
    for benchmark in benchmarks:
        for case in benchmark.cases(small):
            if not allowed(case):
                continue
            values: dict[str, list[float]] = {}
            for _ in range(repeats):
                outcome = run_case(benchmark, case, folder)
                outcomes.append(outcome)
                report(outcome)
                for metric, value in outcome.metrics.items():
                    values.setdefault(metric, []).append(value)
                if not outcome.ok:
                    break
            if values:
                samples = {metric: Sample(unit_of(metric), tuple(found)) for metric, found in values.items()}
                record = make_record(
                    safe_name(case.name), samples, benchmark=case.benchmark, command=case.command,
                    parameters=case.parameters, small=small,
                )  # fmt: skip
                record.save(folder)
                records.append(record)
    return outcomes, records


def run_case(benchmark: Benchmark, case: Case, folder: Path) -> Outcome:
    """Run one command, keep its output in a log file, read its metrics."""
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
        structured = _read_structured(metrics_file)
    write_atomically(log, text)
    outcome = Outcome(case, time.perf_counter() - started, log=log)
    if code != 0:
        lines = [line for line in text.splitlines() if line.strip()]
        reason = f"no end within {benchmark.timeout:g} s" if code is None else f"exit code {code}"
        outcome.failure = f"{reason}: {lines[-1].strip() if lines else 'no output'}"
        return outcome
    for metric, pattern in benchmark.patterns.items():
        value = pattern.read(text)
        if value is not None:
            outcome.metrics[metric] = value
    for metric in benchmark.metrics:
        if metric in structured:
            outcome.metrics[metric] = structured[metric]
    missing = [metric for metric in (*benchmark.patterns, *benchmark.metrics) if metric not in outcome.metrics]
    if missing and not outcome.metrics:
        outcome.failure = f"it ran, but {', '.join(missing)} was not found in its output"
    return outcome


def this_program(command: Sequence[str]) -> list[str]:
    """`conveyor ...` is the program that is running, whatever the search path finds under that name, or nothing."""
    if command and command[0] == "conveyor":
        return [sys.executable, "-m", *command]
    return list(command)


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
        return process.returncode, output.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output.decode(errors="replace")
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _read_structured(path: Path) -> dict[str, float]:
    """The last value of each metric; a rate is the mean of all but the first, which holds the warm-up."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    found: dict[str, float] = {}
    for row in rows:
        found.update({key: float(value) for key, value in row.items() if isinstance(value, int | float)})
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
        rows.append([outcome.case.name, *cells, f"{outcome.seconds:.1f}", outcome.failure or "ok"])
    return ["benchmark", *titles, "seconds", "result"], rows


def unit_of(metric: str) -> str:
    if "latency" in metric:
        return "ms"
    return {"throughput": "img/s", RATE: "img/s", "accuracy": "%", "memory_mib": "MiB"}.get(metric, "")


def safe_name(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_.=" else "_" for char in name).strip("_")


def _cell(value: float | str | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else value
