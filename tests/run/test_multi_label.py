"""Images with several labels, from the list to the answer: trained, reported, predicted, exported."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline.test_exact_further import write_labels

import conveyor
from conveyor.checkpoint import store
from conveyor.cli import main
from conveyor.data.open import open_dataset
from conveyor.errors import UserError
from conveyor.infer.load import load
from conveyor.options import Options
from conveyor.run.stored_options import check_past
from conveyor.spec import resolve

COMMON: dict[str, Any] = {
    "task": "multi-label", "model": "resnet8", "image_size": 12, "micro_batch_size": 8, "layout": "1x1", "threads": 1,
    "optimizer": "adamw", "learning_rate": 0.01, "epochs": 8, "tensorboard": False, "quiet": True, "train_crop": "centre",
}  # fmt: skip


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("labels")
    conveyor.train(data_dir=str(write_labels(home / "images")), run_dir=str(home / "run"), **COMMON)
    return home


def test_the_run_learns_and_stores_its_thresholds(home: Path) -> None:
    rows = rows_of(home / "run" / "validation.csv")
    assert float(rows[-1]["map"]) > 90
    assert all(rows[-1][name] for name in ("f1", "f1_micro", "precision", "recall"))
    assert not rows[-1]["ece"]
    found = json.loads((home / "run" / "labels.json").read_text())
    _, state = store.load_chosen(home / "run", "last")
    assert state.progress["thresholds"] == found["thresholds"] == list(load(home / "run", "last").thresholds or ())
    assert found["classes"] == ["a", "b", "c"]
    assert not (home / "run" / "confusion.json").exists()
    page = conveyor.Run.open(home / "run").report().read_text()
    assert "average precision" in page
    assert "Confusion" not in page


def test_all_labels_above_their_thresholds_are_answered(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = load(home / "run")
    photo = str(home / "images" / "41.png")
    assert main(["predict", str(home / "run"), photo, "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    found = conveyor.load(home / "run").predict(photo)
    assert not isinstance(found, list)
    thresholds = dict(zip(loaded.class_names, loaded.thresholds or (), strict=True))
    expected = {name for name, probability in found.probabilities.items() if probability >= thresholds[name]}
    assert set(found.labels or ()) == expected == {one["label"] for one in answer["labels"]}
    assert sum(found.probabilities.values()) != pytest.approx(1.0, abs=1e-3)
    assert main(["predict", str(home / "run"), photo, "--csv", str(home / "answers.csv")]) == 0
    (row,) = rows_of(home / "answers.csv")
    assert set(filter(None, row["labels"].split(";"))) == expected


def test_validate_writes_all_labels(home: Path) -> None:
    words = ["validate", str(home / "run"), "--checkpoint", "last", "--answers", str(home / "all.csv"), "--quiet"]
    assert main([*words, "--run-dir", str(home / "validated")]) == 0
    rows = rows_of(home / "all.csv")
    assert len(rows) == 20
    last = rows_of(home / "run" / "validation.csv")[-1]
    again = rows_of(home / "validated" / "validation.csv")[-1]
    assert again["map"] == last["map"]
    truth = {row["path"]: row["labels"] for row in rows_of(home / "images" / "images.csv")}
    assert all(row["labels"] == truth[row["path"]] for row in rows)
    assert [int(row["right"]) for row in rows] == [int(row["labels"] == row["answers"]) for row in rows]


def test_an_export_knows_its_thresholds(home: Path) -> None:
    assert main(["export", str(home / "run"), "--format", "torch", "--out", str(home / "exported")]) == 0
    assert load(home / "exported").thresholds == load(home / "run").thresholds
    document = json.loads((home / "exported" / "export.json").read_text())
    (home / "exported" / "export.json").write_text(json.dumps({**document, "thresholds": [0.5]}))
    with pytest.raises(UserError, match="damaged"):
        load(home / "exported")
    assert main(["export", str(home / "run"), "--calibrate", "--out", str(home / "other")]) == 2


def test_columns_of_0_and_1_and_lists_in_parquet_are_the_same_labels(home: Path) -> None:
    rows = rows_of(home / "images" / "images.csv")
    binary, parquet = home / "images" / "binary.csv", home / "images" / "nested.parquet"
    lines = [["path", "split", "c", "b", "a"]]
    lines += [[row["path"], row["split"], *(str(int(n in row["labels"].split(";"))) for n in "cba")] for row in rows]
    binary.write_text("\n".join(",".join(line) for line in lines))
    pyarrow = pytest.importorskip("pyarrow", reason="an extra")
    written = pytest.importorskip("pyarrow.parquet", reason="an extra")
    nested = [{**row, "labels": [one for one in row["labels"].split(";") if one]} for row in rows]
    written.write_table(pyarrow.Table.from_pylist(nested), parquet)

    def labels(path: Path) -> tuple[tuple[str, ...], Any]:
        options = Options.from_mapping({"data_dir": str(path), "task": "multi-label", "train_crop": "centre"})
        found = open_dataset(options, "train", 12, 3)
        assert np.array_equal(found.labels, found.read(np.arange(40), 0).labels)  # type: ignore[attr-defined]
        return found.class_names, found.read(np.arange(40), 0).labels

    names, expected = labels(home / "images" / "images.csv")
    assert names == ("a", "b", "c")
    assert labels(parquet)[1].tolist() == expected.tolist()
    names, found = labels(binary)
    assert names == ("c", "b", "a")
    assert found.flip(1).tolist() == expected.tolist()
    with pytest.raises(UserError, match="--task multi-label"):
        open_dataset(Options.from_mapping({"data_dir": str(binary)}), "train", 12, 3)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "cross-entropy"}, {"label_smoothing": 0.1}, {"balanced_sampling": True}, {"synthetic_data": True},
        {"teacher": "."}, {"num_classes": 12},
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="no meaning with --task multi-label"):
        resolve(Options.from_mapping({"data": "digits", "task": "multi-label", **options}))


def test_a_figure_of_several_labels_needs_them() -> None:
    with pytest.raises(UserError, match="is a figure of --task multi-label"):
        resolve(Options.from_mapping({"data": "digits", "best_by": "map"}))
    assert resolve(Options.from_mapping({"data": "digits", "task": "multi-label"})).best_by == "map"
    assert resolve(Options.from_mapping({"data": "digits"})).best_by == "accuracy"


def test_what_follows_from_the_task_may_be_given_or_not() -> None:
    check_past(Options.from_mapping({"loss": "cross-entropy", "best_by": "accuracy"}), Options())
    with pytest.raises(UserError, match="--task"):
        check_past(Options(), Options.from_mapping({"task": "multi-label"}))
    with pytest.raises(UserError, match="--loss"):
        check_past(Options(), Options.from_mapping({"loss": "bce"}))


def test_arrays_of_ones_own(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    labels = (draw.random((48, 3)) < 0.4).astype(np.int64)
    images = draw.integers(0, 60, (48, 12, 12, 3)).astype(np.uint8)
    images[:, 3:9, 3:9] += (150 * labels).astype(np.uint8)[:, None, None, :]
    data = ((images, labels), (images, labels))
    run = conveyor.train(data=data, run_dir=str(tmp_path / "run"), **COMMON)
    assert run.validation[-1]["map"] > 90
    with pytest.raises(UserError, match="need --task multi-label"):
        conveyor.train(data=data, model="resnet8", run_dir=str(tmp_path / "other"))
