"""The runner with real commands: a failing one is reported and the rest goes on."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conveyor.bench import runner
from conveyor.bench.records import load_record
from conveyor.bench.spec import read_spec
from conveyor.commands.bench import SPECS

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


def test_our_own_command_needs_no_search_path() -> None:
    assert runner.this_program(["conveyor", "train"]) == [sys.executable, "-m", "conveyor", "train"]
    assert runner.this_program(["python3", "x.py"]) == ["python3", "x.py"]


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
