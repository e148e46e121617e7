"""The best checkpoint by any figure of validation."""

import csv
import json
from pathlib import Path

import pytest
from tests.run.runs import train

from conveyor.checkpoint import choice
from conveyor.options.run import METRICS


@pytest.mark.parametrize("metric", sorted(set(METRICS) - {"map", "f1_micro"}))  # those two: test_multi_label
def test_the_best_is_the_extreme_of_the_figure(tmp_path: Path, metric: str) -> None:
    train(tmp_path / "run", best_by=metric, updates=12, updates_per_epoch=2, learning_rate=0.2)
    with (tmp_path / "run" / "validation.csv").open() as file:
        rows = {int(row["update"]): float(row[metric]) for row in csv.DictReader(file)}
    wanted = min(rows.values()) if metric in ("loss", "ece") else max(rows.values())
    best = json.loads((tmp_path / "run" / "best.json").read_text())
    assert rows[best["update"]] == wanted
    assert (best["by"], abs(best["score"])) == (metric, pytest.approx(wanted, rel=1e-6))
    assert choice.find(tmp_path / "run", "best").name == str(best["update"])


def test_patience_watches_it_and_a_resumed_run_remembers(tmp_path: Path) -> None:
    whole = {"best_by": "loss", "updates": 12, "updates_per_epoch": 2, "learning_rate": 0.2}
    train(tmp_path / "whole", **whole)
    train(tmp_path / "parts", **whole, max_time="0s")
    train(tmp_path / "parts", **whole, resume="auto")
    assert (tmp_path / "parts" / "best.json").read_bytes() == (tmp_path / "whole" / "best.json").read_bytes()


def test_another_figure_begins_to_choose_anew(tmp_path: Path) -> None:
    choice.write_best(tmp_path, 4, 90.0)
    choice.write_best(tmp_path, 8, 80.0)
    assert choice.read_best(tmp_path) == (4, 90.0)
    choice.write_best(tmp_path, 8, 80.0, "loss", -0.5)
    assert choice.read_best(tmp_path) == (8, 80.0)
    choice.write_best(tmp_path, 12, 85.0, "loss", -0.75)
    assert choice.read_best(tmp_path) == (8, 80.0)
