"""Images for the report: what the network really got, and none of it of consequence for the run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conveyor.data import open_dataset
from conveyor.data.transform.normalize import Normalization
from conveyor.options import Options
from conveyor.run import examples, worker
from conveyor.run.assemble import make_prepare
from conveyor.spec import resolve
from conveyor.world.world import World

SMALL = {
    "max_train_images": 96,
    "max_validation_images": 40,
    "micro_batch_size": 8,
    "epochs": 2,
    "quiet": True,
    "layout": "1x1",
}


def trained(folder: Path, **options: object) -> Path:
    worker.run(resolve(Options().replace(**SMALL, run_dir=str(folder), **options)))
    return folder


@pytest.mark.parametrize("name", ["imagenet", "unit", "centred", "none"])
def test_the_normalisation_is_undone(name: str) -> None:
    images = torch.randint(256, (2, 4, 4, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    chosen = Normalization.named(name, 3)
    assert torch.equal(chosen.undone(chosen(images)), images)


def test_training_images_are_those_of_the_update() -> None:
    spec = resolve(Options().replace(**SMALL, augment="none", flip="none", train_crop="none"))
    dataset = open_dataset(spec.options, "train", spec.subject.image_size, spec.subject.in_channels)
    images, entries = examples.training_images(dataset, spec, make_prepare(spec, World()), 13)
    stored = dataset.read(np.array([entry["sample"] for entry in entries]), 0)
    assert len(entries) == 8  # one slot of 8 images is all that an update has
    assert torch.equal(images, stored.images)
    assert [entry["labels"] for entry in entries] == [[[int(label), 1.0]] for label in stored.labels]


def test_mixed_images_name_both_labels() -> None:
    spec = resolve(Options().replace(**SMALL, mixup_alpha=0.5))
    dataset = open_dataset(spec.options, "train", spec.subject.image_size, spec.subject.in_channels)
    _, entries = examples.training_images(dataset, spec, make_prepare(spec, World()), 3)
    assert any(len(entry["labels"]) == 2 for entry in entries)
    assert all(sum(share for _, share in entry["labels"]) == pytest.approx(1, abs=1e-3) for entry in entries)


def test_a_run_leaves_images_and_heat_maps(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    for name in ("mistakes", "right", "augmented"):
        listed = json.loads((folder / name / f"{name}.json").read_text())
        assert listed
        for entry in listed:
            with Image.open(folder / name / entry["file"]) as image:
                assert max(image.size) <= examples.LARGEST
    mistakes = json.loads((folder / "mistakes" / "mistakes.json").read_text())
    assert all("heat" in entry for entry in mistakes[: examples.MAPPED])
    assert not any("heat" in entry for entry in mistakes[examples.MAPPED :])
    assert max(max(row) for row in mistakes[0]["heat"]) <= 100
    bins = json.loads((folder / "calibration.json").read_text())["bins"]
    assert sum(images for images, _, _ in bins) == 40


def test_a_run_that_had_come_to_its_end_keeps_them(tmp_path: Path) -> None:
    """Started once more, as an engine does that was told of its end too late, it validates nothing."""
    folder = trained(tmp_path / "run")
    shown = {path: path.read_bytes() for name in ("mistakes", "right") for path in (folder / name).iterdir()}
    trained(folder, resume="auto")
    assert shown == {path: path.read_bytes() for name in ("mistakes", "right") for path in (folder / name).iterdir()}


def test_without_a_report_no_model_is_run_for_it_and_the_weights_are_the_same(tmp_path: Path) -> None:
    plain, shown = trained(tmp_path / "plain", report=False), trained(tmp_path / "shown")
    assert not (plain / "augmented").exists()
    assert not any("heat" in entry for entry in json.loads((plain / "mistakes" / "mistakes.json").read_text()))
    for one in sorted(shown.glob("checkpoints/*/*.safetensors")):
        assert one.read_bytes() == (plain / one.relative_to(shown)).read_bytes()


def test_trouble_with_the_images_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such layer")

    monkeypatch.setattr(examples, "heat_maps", broken)
    result = worker.run(resolve(Options().replace(**SMALL, run_dir=str(tmp_path / "run"))))
    assert result["reason"] == "done"
    assert "the report lacks images" in capsys.readouterr().out
