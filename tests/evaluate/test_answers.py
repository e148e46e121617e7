"""Answers to single images: written alike on any layout, and what follows from them."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.run.runs import train

from conveyor import cli
from conveyor.evaluate.accuracy import macro_scores


def test_macro_scores_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="the independent implementation comes with an extra")
    labels = torch.randint(0, 4, (200,), generator=torch.Generator().manual_seed(0))
    answers = torch.where(torch.rand(200, generator=torch.Generator().manual_seed(1)) < 0.6, labels, 0)
    counts = [torch.bincount(one, minlength=6) for one in (labels, answers, answers[answers == labels])]
    found = macro_scores(torch.stack(counts))
    expected = metrics.precision_recall_fscore_support(labels, answers, average="macro", zero_division=0)
    assert [found[name] / 100 for name in ("precision", "recall", "f1")] == pytest.approx(list(expected[:3]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers") / "run"
    train(folder, validation_batch_size=7)
    return folder


def test_the_file_has_every_image_and_agrees_with_the_figures(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "answers.csv"
    assert cli.main(["validate", str(run), "--answers", str(file), "--run-dir", str(tmp_path / "v"), "--quiet"]) == 0
    rows = list(csv.DictReader(file.read_text().splitlines()))
    with (tmp_path / "v" / "validation.csv").open() as figures:
        measured = next(csv.DictReader(figures))
    assert [row["path"] for row in rows] == [f"validation/{number}" for number in range(30)]
    assert 100 * sum(int(row["right"]) for row in rows) / 30 == pytest.approx(float(measured["accuracy"]), rel=1e-6)
    assert all((row["answer"] == row["label"]) == (row["right"] == "1") for row in rows)
    other = tmp_path / "other.csv"
    command = ["validate", run, "--answers", other, "--run-dir", tmp_path / "w", "--quiet", "--layout", "2x1"]
    subprocess.run([sys.executable, "-m", "conveyor", *command], check=True, capture_output=True)
    assert file.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_images_in_parts_are_written_alike(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """All probabilities of a large set do not fit into memory at once."""
    tables = []
    for name, at_once in (("whole", 1 << 24), ("parts", 70)):  # 10 classes: 7 images at a time
        monkeypatch.setattr("conveyor.evaluate.answers._AT_ONCE", at_once)
        file = tmp_path / f"{name}.{form}"
        words = ["validate", str(run), "--answers", str(file), "--run-dir", str(tmp_path / f"{name}-{form}"), "--quiet"]
        assert cli.main(words) == 0
        if form == "csv":
            tables.append(file.read_bytes())
        else:
            tables.append(pytest.importorskip("pyarrow.parquet", reason="an extra").read_table(file).to_pylist())
    assert tables[0] == tables[1]


def test_parquet_has_all_probabilities(run: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="parquet is an extra")
    file = tmp_path / "answers.parquet"
    assert cli.main(["validate", str(run), "--answers", str(file), "--run-dir", str(tmp_path / "v"), "--quiet"]) == 0
    table = parquet.read_table(file)
    assert table.num_rows == 30
    for row in table.to_pylist():
        assert sum(row["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert max(row["probabilities"]) == pytest.approx(row["confidence"], abs=1e-6)


def test_what_cannot_be_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", str(run), "--answers", "answers.txt"]) == 2
    assert ".csv or .parquet" in capsys.readouterr().err
    assert cli.main(["train", "--answers", "a.csv", "--run-dir", str(tmp_path / "t")]) == 2
    assert "no effect in training" in capsys.readouterr().err
