"""The runner with real commands: a failing one is reported and the rest goes on."""

import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from conveyor.bench import runner
from conveyor.bench.records import load_record
from conveyor.bench.spec import read_spec
from conveyor.commands.bench import SPECS
from conveyor.layout import usable_cores
from conveyor.processes import this_program

PROGRAM = f"""
good:
  description: prints rates
  parameters: {{n: '3,5'}}
  cmd: {sys.executable} -c "[print('throughput:', {{n}} * i, 'samples/sec') for i in (1, 2, 4)]"
  data: {{throughput: {{regexp: 'throughput: *(.*?) samples', skip: 1}}}}
  output: [[rate, throughput], [size, n]]
bad:
  cmd: {sys.executable} -c "import sys; print('the reason'); sys.exit(3)"
  data: {{throughput: {{regexp: '(x)'}}}}
silent:
  cmd: {sys.executable} -c "print('hello')"
  data: {{throughput: {{regexp: 'rate (x)'}}}}
slow:
  cmd: {sys.executable} -c "import time; time.sleep(60)"
  timeout: 0.5
  data: {{throughput: {{regexp: 'rate (x)'}}}}
absent:
  cmd: no-such-program-anywhere
  data: {{throughput: {{regexp: 'rate (x)'}}}}
structured:
  cmd: {sys.executable} -c "import json, os; f = open(os.environ['CONVEYOR_METRICS_FILE'], 'a'); [print(json.dumps(dict(images_per_second=r, loss=1 / r)), file=f) for r in (1, 10, 20)]"
  metrics: [images_per_second, loss]
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yml"
    path.write_text(PROGRAM)
    return path


def test_failures_do_not_stop_the_rest(spec: Path, tmp_path: Path) -> None:
    benchmarks = list(read_spec(spec).values())
    outcomes, records = runner.run_all(benchmarks, small=False, folder=tmp_path / "out")
    found = {outcome.case.name: outcome for outcome in outcomes}
    assert found["good[n=3]"].metrics == {"throughput": 9}
    assert found["good[n=5]"].metrics == {"throughput": 15}
    assert "exit code 3: the reason" in found["bad"].failure
    assert "was not found" in found["silent"].failure
    assert "no end within 0.5 s" in found["slow"].failure
    assert "cannot start no-such-program-anywhere" in found["absent"].failure
    assert found["structured"].metrics == {"images_per_second": 15, "loss": 0.05}
    assert [record.name for record in records] == ["good_n=3", "good_n=5", "structured"]
    assert load_record(next((tmp_path / "out").glob("good_n=5*.json"))).results["throughput"].values == (15,)
    titles, rows = runner.table(benchmarks, outcomes)
    assert titles == ["benchmark", "rate", "size", "throughput", "images_per_second", "loss", "seconds", "result"]
    assert rows[0][:3] == ["good[n=3]", "9", "3"]


def test_from_the_command_line(spec: Path, tmp_path: Path, conveyor: Callable[..., tuple[int, str, str]]) -> None:
    words = ["bench", "run", "--spec", spec, "--out", tmp_path, "--benchmark"]
    code, out, _ = conveyor(*words, "good")
    assert code == 0
    assert "good[n=5]" in out
    code, out, _ = conveyor(*words, "good", "bad")
    assert code == 1
    assert "1 of 3 runs failed" in out
    assert (tmp_path / "records" / "last-run.csv").read_text().startswith("benchmark,rate,size")
    records = sorted((tmp_path / "records").glob("good*.json"))
    code, out, _ = conveyor("bench", "compare", records[0], records[1])
    assert code == 0
    assert "cannot tell" in out
    code, _, error = conveyor("bench", "run", "--spec", "nowhere")
    assert (code, "nowhere" in error) == (2, True)


LEAVES = "import subprocess, sys; one = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"


def one(tmp_path: Path, program: str, more: str) -> runner.Outcome:
    """The outcome of a specification with one program."""
    script = tmp_path / "program.py"
    script.write_text(program)
    path = tmp_path / "spec.yml"
    path.write_text(f"one:\n  cmd: {sys.executable} {script}\n  {more}\n")
    benchmark = read_spec(path)["one"]
    return runner.run_case(benchmark, benchmark.cases()[0], tmp_path / "out")


def test_a_command_that_ends_leaves_nothing_running(tmp_path: Path) -> None:
    outcome = one(tmp_path, f"{LEAVES}; print('left', one.pid)", "data: {left: {regexp: 'left (.*)'}}")
    assert outcome.ok
    wait_for_end(int(outcome.metrics["left"]))


def wait_for_end(pid: int) -> None:
    """Until the process is gone; one whose parent died may wait for somebody to ask how it ended."""
    end = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, f"process {pid} still runs"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + 15), (signal.SIGHUP, 128 + 1)]
)
def test_a_benchmark_told_to_stop_takes_its_command_along(number: signal.Signals, code: int, tmp_path: Path) -> None:
    note, script, path = tmp_path / "pid", tmp_path / "program.py", tmp_path / "spec.yml"
    script.write_text(f"import os, time\nopen({str(note)!r}, 'w').write(f'{{os.getpid()}}.')\ntime.sleep(600)")
    path.write_text(f"one:\n  cmd: {sys.executable} {script}\n")
    words = [sys.executable, "-m", "conveyor", "bench", "run", "--spec", str(path), "--out", str(tmp_path)]
    with subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        end = time.monotonic() + 60
        while not (note.exists() and note.read_text().endswith(".")):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(30) == code
    wait_for_end(int(note.read_text().rstrip(".")))


def test_half_a_line_of_a_killed_command_ends_nothing(tmp_path: Path) -> None:
    program = """
import os
with open(os.environ["CONVEYOR_METRICS_FILE"], "w") as file:
    file.write('{"event": "log", "loss": 2.5}\\n[1]\\n{"event": "log", "lo')
"""
    assert one(tmp_path, program, "metrics: [loss]").metrics == {"loss": 2.5}
    assert "exit code 3" in one(tmp_path, f"{program}\nraise SystemExit(3)", "metrics: [loss]").failure


def test_a_loss_that_is_no_number_at_the_end_is_no_result(tmp_path: Path) -> None:
    program = """
import json, os
with open(os.environ["CONVEYOR_METRICS_FILE"], "w") as file:
    for loss in (2.5, "nan"):
        print(json.dumps({"event": "log", "loss": loss, "images_per_second": 3.0}), file=file)
"""
    assert one(tmp_path, program, "metrics: [loss, images_per_second]").metrics == {"images_per_second": 3.0}
    outcome = one(tmp_path, "print('loss nan')", "data: {loss: {regexp: 'loss (.*)'}}")
    assert "loss was not found" in outcome.failure


def test_a_metric_that_is_missing_beside_others_is_named(tmp_path: Path) -> None:
    more = "data: {loss: {regexp: 'loss (.*)'}, rate: {regexp: 'rate (.*)', skip: 1}}"
    outcome = one(tmp_path, "print('loss 2'); print('rate 3')", more)
    assert (outcome.ok, outcome.result) == (True, "ok, but without rate")
    assert runner.table([read_spec(tmp_path / "spec.yml")["one"]], [outcome])[1][0][-1] == outcome.result


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert f"there is no folder {tmp_path / 'nowhere'}" in one(tmp_path, "pass", "location: nowhere").failure


def test_repeated_cases_take_turns(spec: Path, tmp_path: Path) -> None:
    benchmarks = [benchmark for name, benchmark in read_spec(spec).items() if name in ("good", "bad")]
    ran: list[str] = []
    outcomes, records = runner.run_all(
        benchmarks,
        small=False,
        folder=tmp_path / "out",
        repeats=3,
        report=lambda outcome: ran.append(outcome.case.name),
    )
    there, back = ["good[n=3]", "good[n=5]"], ["good[n=5]", "good[n=3]"]
    assert ran == [*there, "bad", *back, *there]  # one that fails is not run again
    assert [outcome.case.name for outcome in outcomes] == [*3 * ["good[n=3]"], *3 * ["good[n=5]"], "bad"]
    assert [record.results["throughput"].n for record in records] == [3, 3]


def test_what_was_measured_before_an_interruption_is_kept(spec: Path, tmp_path: Path) -> None:
    def interrupt(outcome: runner.Outcome) -> None:
        if outcome.case.name == "good[n=5]":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run_all(list(read_spec(spec).values()), small=False, folder=tmp_path, report=interrupt)
    assert [path.name.partition("-")[0] for path in sorted(tmp_path.glob("*.json"))] == ["good_n=3", "good_n=5"]


TELLS = (
    "import json, os; f = open(os.environ['CONVEYOR_METRICS_FILE'], 'a'); print(json.dumps(dict(event='start', "
    "spec=dict(layout='2x3', threads=4))), file=f); print(json.dumps(dict(loss=1.0)), file=f)"
)


@pytest.mark.parametrize(
    ("program", "env", "threads"),
    [
        (TELLS, "{}", 24),
        ("print('loss 1')", "{OMP_NUM_THREADS: 3}", 3),
        ("print('loss 1')", "{OMP_NUM_THREADS: ''}", None),
    ],
)
def test_a_record_says_how_many_threads_there_were(program: str, env: str, threads: int | None, tmp_path: Path) -> None:
    path = tmp_path / "spec.yml"
    how = "metrics: [loss]" if program == TELLS else "data: {loss: {regexp: 'loss (.*)'}}"
    path.write_text(f'one:\n  cmd: {sys.executable} -c "{program}"\n  env: {env}\n  {how}\n')
    _, (record,) = runner.run_all(list(read_spec(path).values()), small=False, folder=tmp_path / "out")
    assert record.conditions["threads"] == (threads or usable_cores())


def test_our_own_command_needs_no_search_path() -> None:
    assert this_program(["conveyor", "train"]) == [sys.executable, "-P", "-m", "conveyor", "train"]
    assert this_program(["python3", "x.py"]) == ["python3", "x.py"]


def test_the_published_specification_finds_all_its_metrics(tmp_path: Path) -> None:
    """One training and one inference entry as shipped, with images small enough for a test."""
    tiny = {"train": "--layout 1x1 --image-size 32 --micro-batch-size 2"}
    tiny["validate"] = "--model resnet8 --image-size 32 --repeat 2 --max-validation-images 8"
    known = read_spec(SPECS / "cnns.yml", tmp_path)
    for name in ("resnet50_train_m2000", "resnet50_infer_generated"):
        benchmark = known[name]
        case = next(iter(benchmark.cases(small=True)))
        case = dataclasses.replace(case, command=[*case.command, *tiny[case.command[1]].split()])
        outcome = runner.run_case(benchmark, case, tmp_path / "out")
        assert outcome.ok, f"{outcome.failure}: {outcome.log and outcome.log.read_text()}"
        assert set(outcome.metrics) == set(benchmark.metrics)
