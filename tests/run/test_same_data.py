"""A run goes on, is validated and exported only with the data that it was trained on, from wherever that is asked."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conveyor.infer.classifier import Classifier
from conveyor.infer.load import load
from conveyor.infer.predict import Prediction
from conveyor.options import Options
from conveyor.run.folder import read_options

Command = Callable[..., tuple[int, str, str]]

CLASSES = ("ape", "bee", "cat")
SMALL = ("--model", "resnet8", "--image-size", "16", "--micro-batch-size", "4", "--layout", "1x1", "--device", "cpu")


def make_photographs(root: Path) -> None:
    generator = np.random.default_rng(0)
    for split, count in (("train", 8), ("validation", 2)):
        for name in CLASSES:
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (24, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conveyor: Command) -> Path:
    """A folder with photographs and a run on them, started there with a relative --data-dir."""
    make_photographs(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    code, _, err = conveyor("train", *SMALL, "--data-dir", "photos", "--run-dir", "run", "--epochs", "1")
    assert code == 0, err
    return tmp_path


def rename(home: Path, old: str, new: str) -> None:
    for split in ("train", "validation"):
        (home / "photos" / split / old).rename(home / "photos" / split / new)


def asked(conveyor: Command, home: Path, *, going_on: bool = False) -> list[tuple[int, str]]:
    """Code and error of each command that needs the run's data; only of those that go on with it, if asked."""
    again = ("--data-dir", home / "photos", "--run-dir", home / "run", "--epochs", "2", "--resume", "auto")
    shutil.rmtree(home / "export", ignore_errors=True)
    commands = (
        ("validate", "--checkpoint-path", home / "run", "--run-dir", home / "validated"),
        ("export", home / "run", "--int8", "--out", home / "export", "--max-drop", "100"),
        ("restore", "--checkpoint-path", home / "run", "--epochs", "2"),
        ("train", *SMALL, *again),
    )
    chosen = commands[2:] if going_on else commands
    return [(code, err) for code, _, err in (conveyor(*command) for command in chosen)]


def test_renamed_classes_are_refused_with_both_lists(home: Path, conveyor: Command) -> None:
    rename(home, "bee", "zebra")
    for code, err in asked(conveyor, home):
        assert code == 2, err
        assert "the classes ape, bee, cat, the data have ape, cat, zebra" in err
        assert "Traceback" not in err


def test_a_class_more_is_refused_with_both_lists(home: Path, conveyor: Command) -> None:
    for split in ("train", "validation"):
        shutil.copytree(home / "photos" / split / "bee", home / "photos" / split / "dog")
    for code, err in asked(conveyor, home, going_on=True):
        assert code == 2
        assert "the classes ape, bee, cat, the data have ape, bee, cat, dog" in err


def test_other_files_are_refused_when_the_run_goes_on(home: Path, conveyor: Command) -> None:
    (home / "photos" / "train" / "ape" / "0.png").rename(home / "photos" / "train" / "bee" / "other.png")
    for code, err in asked(conveyor, home, going_on=True):
        assert code == 2
        assert "24 images for training and 6 for validation" in err
        assert "their files differ" in err


def test_a_relative_folder_is_found_from_elsewhere(
    home: Path, conveyor: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_options(home / "run").data.data_dir == str(home / "photos")
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for code, err in asked(conveyor, home):
        assert code == 0, err
    assert str(home) not in (home / "export" / "export.json").read_text()


def test_a_folder_that_is_gone_is_named(home: Path, conveyor: Command) -> None:
    (home / "photos").rename(home / "moved")
    for code, err in asked(conveyor, home):
        assert code == 2
        assert f"the data folder {home / 'photos'} does not exist" in err
        assert "--num-classes" not in err
    code, _, err = conveyor("restore", "--checkpoint-path", home / "run", "--epochs", "2", "--data-dir", home / "moved")
    assert code == 0, err


def test_files_are_predicted_as_arrays_are(home: Path) -> None:
    classifier = Classifier(load(home / "run"))
    assert classifier.class_names == CLASSES
    files = sorted((home / "photos" / "validation").rglob("*.png"))
    from conveyor.infer import accuracy

    images = accuracy.sample(
        Options().replace(data_dir=str(home / "photos")), "validation", classifier.preprocessing, 99
    ).images
    logits = classifier(torch.from_numpy(images)).double()
    found = classifier.predict(files)
    assert isinstance(found, list)
    assert [one.label for one in found] == [CLASSES[int(row.argmax())] for row in logits]
    assert [one.probability for one in found] == pytest.approx(logits.softmax(1).max(1).values.tolist(), rel=1e-6)
    one = classifier.predict(files[0].read_bytes())
    assert isinstance(one, Prediction)
    assert one.ranked == classifier.predict(files[:1])[0].ranked  # type: ignore[index]


def _images_of(run: Path) -> str:
    with open(run / "validation.csv", encoding="utf-8") as file:
        return next(csv.DictReader(file))["images"]


def test_training_on_noise_validates_its_few_images(conveyor: Command, tmp_path: Path) -> None:
    """Not fifty thousand repetitions of them."""
    words = ("--data", "imagenet", "--generated-data", "--updates", "2", "--run-dir", tmp_path / "run")
    code, out, err = conveyor("train", *SMALL, *words)
    assert code == 0, err
    assert "validation is on the 64 different images of made-up data" in out
    assert _images_of(tmp_path / "run") == "64"
    code, out, _ = conveyor("train", *SMALL, *words[:-1], tmp_path / "more", "--max-validation-images", "100")
    assert code == 0
    assert _images_of(tmp_path / "more") == "100"
