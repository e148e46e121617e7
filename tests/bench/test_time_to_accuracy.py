"""Runs of one recipe become a record with their accuracies and core-seconds, and a section of the page."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conveyor.bench import time_to_accuracy
from conveyor.bench.page import write_page
from conveyor.bench.tables import newest_records
from conveyor.errors import UserError

Cli = Callable[..., tuple[int, str, str]]


def made_up(folder: Path, *, seconds: float, accuracy: float, seed: int = 1, updates: int = 20, more: str = "") -> Path:
    """The folder of a run of 20 updates on two lanes of two threads."""
    folder.mkdir()
    command = f"conveyor train{more} --data-dir /somewhere --seed {seed} --run-dir {folder}"
    spec = {"layout": "2x1", "threads": 2, "updates_total": 20, "command": command}
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "result.json").write_text(json.dumps({"updates": updates, "seconds": seconds}))
    (folder / "metrics.csv").write_text(f"update,accuracy,seconds\n10,50,{seconds / 2}\n20,80,{seconds}\n")
    (folder / "validation.csv").write_text(f"update,accuracy,seconds\n20,{accuracy},3\n10,60,2\n")
    return folder


def test_core_seconds_are_those_of_all_cores_and_the_last_validation_counts(tmp_path: Path) -> None:
    runs = [
        made_up(tmp_path / "a", seconds=100.0, accuracy=93.0),
        made_up(tmp_path / "b", seconds=130.0, accuracy=95.0, seed=2),
    ]
    record = time_to_accuracy.collect("recipe", runs)
    assert record.results["accuracy"].values == (93.0, 95.0)
    assert record.results["training"].values == (400.0, 520.0)
    assert record.results["validation"].values == (12.0, 12.0)
    assert record.conditions["command"] == "conveyor train --data-dir DIR"
    assert record.conditions["runs"][0]["validations"] == [(200.0, 60.0), (400.0, 93.0)]
    assert time_to_accuracy.row(record)[1:4] == ["2", "94.00 % (93.00..95.00)", "460 (400..520)"]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"more": " --nesterov"}, "another recipe"),
        ({"updates": 11}, "ended after 11 of 20 updates"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(tmp_path: Path, second: dict[str, object], words: str) -> None:
    first = made_up(tmp_path / "a", seconds=1.0, accuracy=90.0)
    other = made_up(tmp_path / "b", seconds=1.0, accuracy=90.0, **second)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=words):
        time_to_accuracy.collect("recipe", [first, other])


def test_a_run_without_training_accuracy_still_counts(tmp_path: Path) -> None:
    run = made_up(tmp_path / "a", seconds=100.0, accuracy=93.0)
    (run / "metrics.csv").write_text("update,accuracy,seconds\n10,,50\n20,,100\n")
    record = time_to_accuracy.collect("recipe", [run])
    assert record.results["training"].values == (400.0,)
    assert record.conditions["runs"][0]["training"] == []
    assert "<polyline" in time_to_accuracy.chart(record)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("result.json", '{"reason": "done"}'),
        ("result.json", "[]"),
        ("validation.csv", "update,accuracy,seconds\n20,,3\n"),
    ],
)
def test_a_damaged_run_is_refused(file: str, text: str, tmp_path: Path) -> None:
    run = made_up(tmp_path / "a", seconds=100.0, accuracy=93.0)
    (run / file).write_text(text)
    with pytest.raises(UserError, match="not the folder of a finished run"):
        time_to_accuracy.collect("recipe", [run])


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a finished run"):
        time_to_accuracy.collect("recipe", [tmp_path])


def test_a_real_run_becomes_a_row_and_a_curve(tmp_path: Path, conveyor: Cli) -> None:
    run, out = str(tmp_path / "run"), tmp_path / "benchmarks"
    options = "--model resnet8 --data digits --epochs 2 --layout 1x1 --quiet --no-report --run-dir"
    assert conveyor("train", *options.split(), run)[0] == 0
    code, printed, _ = conveyor("bench", "accuracy", "small", run, "--out", str(out))
    assert code == 0
    assert "core-seconds" in printed
    (record,) = newest_records(out / "records").values()
    assert len(record.conditions["runs"][0]["validations"]) >= 2
    page = write_page(out).read_text()
    assert "## Time to accuracy" in page
    assert "| small | 1 |" in page
    svg = (out / "accuracy-small.svg").read_text()
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg" class="chart"')
    assert svg.count("<polyline") == 2
