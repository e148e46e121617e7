"""A temperature fitted on validation images is part of the export, in every form; so is the threshold of abstaining."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.run.runs import train

import conveyor
from conveyor import cli
from conveyor.infer.engines.engine import open_engine
from conveyor.infer.load import load


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated") / "run"
    train(folder, updates=60, updates_per_epoch=60, max_validation_images=200, learning_rate=0.1)
    return folder


@pytest.mark.parametrize("form", ["torch", "onnx"])
def test_logits_of_the_export_are_divided_by_the_temperature(run: Path, tmp_path: Path, form: str) -> None:
    if form == "onnx":
        pytest.importorskip("onnxruntime", reason="the export extra")
    out = tmp_path / "export"
    assert cli.main(["export", str(run), "--out", str(out), "--format", form, "--calibrate", "--abstain", "90"]) == 0
    document = json.loads((out / "export.json").read_text())
    temperature = document["temperature"]
    assert temperature != 1
    assert document["ece"] >= 0
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 1), dtype=np.uint8)
    plain = open_engine(load(run), "torch", 6)(images)
    name = "torch" if form == "torch" else "onnxruntime"
    found = open_engine(load(out), name, 6)(images)
    np.testing.assert_allclose(found * temperature, plain, rtol=1e-4, atol=1e-4)


def test_unsure_answers_are_marked(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "export"
    assert cli.main(["export", str(run), "--out", str(out), "--format", "torch", "--abstain", "97"]) == 0
    document = json.loads((out / "export.json").read_text())
    assert 0 < document["abstain_coverage"] <= 100
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    for one in conveyor.load(out).predict(list(images)):
        assert one.abstains == (one.probability < document["abstain_below"])
        assert one.to_json().get("abstains", False) == one.abstains
    assert not any(one.abstains for one in conveyor.load(run).predict(list(images)))


@pytest.mark.parametrize(("field", "value"), [("temperature", 0), ("temperature", "x"), ("abstain_below", 2)])
def test_a_damaged_number_is_refused(
    run: Path, tmp_path: Path, field: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "export"
    assert cli.main(["export", str(run), "--out", str(out), "--format", "torch"]) == 0
    document = json.loads((out / "export.json").read_text())
    (out / "export.json").write_text(json.dumps({**document, field: value}))
    assert cli.main(["predict", str(out), str(tmp_path)]) == 2
    with pytest.raises(conveyor.UserError, match="is damaged"):
        load(out)
