"""What a model says of photographs, from the shell and from Python: the same, however they are given."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.photos import make_folder, picture

import conveyor
from conveyor.cli import main
from conveyor.errors import UserError
from conveyor.infer.predict import Prediction, find_files, probabilities

Command = Callable[..., tuple[int, str, str]]
CLASSES = ("ape", "bee", "cat")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, and a run on them."""
    home = tmp_path_factory.mktemp("home")
    make_folder(home / "photos", train=4, validation=2, classes=CLASSES)
    words = ["train", "--data-dir", home / "photos", "--model", "resnet8", "--image-size", 16, "--micro-batch-size", 4]
    assert main([str(word) for word in [*words, "--layout", "1x1", "--epochs", 2, "--run-dir", home / "run"]]) == 0
    return home


@pytest.fixture(scope="module")
def model(home: Path) -> "conveyor.api.Classifier":
    return conveyor.load(home / "run")


def test_a_file_a_picture_and_an_array_are_prepared_alike(model: "conveyor.api.Classifier", tmp_path: Path) -> None:
    pixels = picture(50, 70, 3)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    wanted = model.predict(str(tmp_path / "photo.png"))
    assert isinstance(wanted, Prediction)
    assert wanted.label in CLASSES
    assert wanted.probability == max(wanted.probabilities.values())
    assert sum(wanted.probabilities.values()) == pytest.approx(1)
    for same in (tmp_path / "photo.png", (tmp_path / "photo.png").read_bytes(), Image.fromarray(pixels), pixels):
        found = model.predict(same)
        assert isinstance(found, Prediction)
        assert found.ranked == wanted.ranked
    assert [one.ranked for one in _many(model.predict(pixels[None]))] == [wanted.ranked]
    assert [one.ranked for one in _many(model.predict(tmp_path))] == [wanted.ranked]


def test_a_file_whose_name_begins_with_a_tilde_is_no_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("~$temp.jpg").touch()
    assert find_files(["~$temp.jpg"]) == find_files(["*.jpg"]) == ["~$temp.jpg"]
    with pytest.raises(UserError, match="there is no file ~nobody-of-that-name"):
        find_files(["~nobody-of-that-name/x.jpg"])


def test_an_address_is_told_how_it_is_fetched() -> None:
    with pytest.raises(UserError, match=r"https://example.org/a.jpg is no file: fetch it first.* -$"):
        find_files(["https://example.org/a.jpg"])


def test_files_below_a_folder_have_the_names_that_paths_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.JPG", "a/c.png", "a/d/.jpg", "a/d/e.jpeg", "a/notes.txt", "a/d/no_suffixjpg", "é/f.webp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    expected = ["a/c.png", "a/d/e.jpeg", "b.JPG", "é/f.webp"]
    assert find_files(["."]) == find_files([Path()]) == expected
    assert find_files([tmp_path, tmp_path / "a"]) == [str(tmp_path / name) for name in expected]
    assert find_files(["a/"]) == expected[:2]


def test_many_classes_are_kept_as_numbers() -> None:
    """A tuple for each of 21,000 classes of every image would be megabytes."""
    row = np.random.default_rng(0).random(21_000)
    found = Prediction("photo.png", _row=row, _label=lambda index: f"class {index}")
    order = np.argsort(-row, kind="stable")
    assert found.top(3) == [(f"class {index}", row[index]) for index in order[:3]]
    assert found.ranked[:3] == tuple(found.top(3))
    assert len(found.ranked) == len(found.probabilities) == 21_000
    assert not Prediction("broken.png", error="no image").ranked


def test_an_array_of_the_right_size_is_cropped_all_the_same(model: "conveyor.api.Classifier", tmp_path: Path) -> None:
    pixels = picture(16, 16, 5)
    Image.fromarray(pixels).save(tmp_path / "small.png")
    (found,) = _many(model.predict([pixels]))
    file = model.predict(tmp_path / "small.png")
    assert isinstance(file, Prediction)
    assert found.ranked == file.ranked


def test_a_picture_lies_as_its_exif_says(model: "conveyor.api.Classifier") -> None:
    turned, exif = Image.fromarray(picture(40, 60, 7)), Image.Exif()
    exif[0x0112] = 6
    stored = io.BytesIO()
    turned.save(stored, "PNG", exif=exif)
    opened = Image.open(io.BytesIO(stored.getvalue()))
    from_file, from_picture, lying = (model.predict(one) for one in (stored.getvalue(), opened, turned))
    assert isinstance(from_file, Prediction)
    assert isinstance(from_picture, Prediction)
    assert isinstance(lying, Prediction)
    assert from_picture.ranked == from_file.ranked != lying.ranked


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (np.zeros((8, 8, 3), np.float32), "8-bit"),
        (np.zeros((8, 8, 2), np.uint8), "is no image"),
        (b"nothing", "cannot read"),
        (7, "int is no image"),
        ("absent.jpg", "there is no file"),
        ("http://host/a.jpg", "http://host/a.jpg is no file: fetch it first"),
    ],
)
def test_what_is_no_image_is_one_sentence(model: "conveyor.api.Classifier", wrong: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        model.predict(wrong)


def test_the_shell_tells_what_python_does(home: Path, model: "conveyor.api.Classifier", conveyor: Command) -> None:
    folder = home / "photos" / "validation"
    wanted = _many(model.predict(folder))
    code, out, err = conveyor("predict", home / "run", folder, "--json", "--top", 2)
    assert code == 0, err
    found = json.loads(out)
    assert [one["file"] for one in found] == [one.file for one in wanted]
    for one, same in zip(found, wanted, strict=True):
        assert one["label"] == same.label == one["top"][0]["label"]
        assert one["probability"] == pytest.approx(same.probability, abs=1e-5)
        assert len(one["top"]) == 2
    code, out, _ = conveyor("predict", home / "run", folder / "ape", str(folder / "b*" / "*.JPEG"))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == [one.file for one in wanted[:4]]
    assert [line.split()[1] for line in out.splitlines()[1:]] == [one.label for one in wanted[:4]]


def test_a_wrong_engine_is_told_before_the_table_begins(home: Path, conveyor: Command) -> None:
    code, out, err = conveyor("predict", home / "run", home / "photos", "--engine", "onnx")
    assert code == 2
    assert "there is no engine 'onnx'" in err
    assert out == ""


def test_damaged_files_are_named_and_the_others_answered(home: Path, tmp_path: Path, conveyor: Command) -> None:
    for number in range(20):
        Image.fromarray(picture(30, 30, number)).save(tmp_path / f"{number:02}.png")
    whole = (tmp_path / "03.png").read_bytes()
    (tmp_path / "03.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "17.png").write_bytes(b"")
    code, _, err = conveyor("predict", home / "run", tmp_path, "--csv", tmp_path / "out.csv")
    assert code == 1
    assert err.count("cannot read") == 2
    assert "2 of 20 could not be read" in err
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert [Path(row["file"]).stem for row in rows if row["error"]] == ["03", "17"]
    assert sum(row["label"] in CLASSES and float(row["probability"]) > 1 / 3 for row in rows) == 18


@pytest.mark.parametrize("names", [True, False])
def test_standard_input_is_an_image_or_names(
    home: Path, conveyor: Command, monkeypatch: pytest.MonkeyPatch, names: bool
) -> None:
    file = home / "photos" / "validation" / "bee" / "0.JPEG"
    given = io.TextIOWrapper(io.BytesIO(f"{file}\n".encode() if names else file.read_bytes()))
    monkeypatch.setattr("sys.stdin", given)
    code, out, err = conveyor("predict", home / "run", "-", "--json")
    assert code == 0, err
    (found,) = json.loads(out)
    assert found["file"] == (str(file) if names else "-")
    _, again, _ = conveyor("predict", home / "run", file, "--json")
    assert found["top"] == json.loads(again)[0]["top"]


def test_an_export_predicts_too(home: Path, tmp_path: Path, conveyor: Command) -> None:
    file = home / "photos" / "validation" / "bee" / "0.JPEG"
    code, _, err = conveyor("export", home / "run", "--out", tmp_path / "export", "--batch", 3)
    assert code == 0, err
    answers = []
    for source, engine in ((home / "run", "auto"), (tmp_path / "export", "onnxruntime")):
        code, out, err = conveyor("predict", source, file, "--json", "--engine", engine)
        assert code == 0, err
        assert ("of run, the last" in err) == (source.name == "run"), "an export has no checkpoints to choose from"
        answers.append(json.loads(out)[0])
    assert answers[0]["label"] == answers[1]["label"]
    assert answers[0]["probability"] == pytest.approx(answers[1]["probability"], abs=1e-5)


def test_answers_in_another_precision(home: Path, conveyor: Command) -> None:
    words = ("predict", home / "run", home / "photos" / "validation", "--json", "--quiet")
    code, out, _ = conveyor(*words)
    assert code == 0
    code, half, said = conveyor(*words, "--infer-precision", "bfloat16", "--max-drop", 100)
    assert code == 0
    assert "bfloat16" in said
    for plain, rounded in zip(json.loads(out), json.loads(half), strict=True):
        assert rounded["file"] == plain["file"]
        assert rounded["probability"] == pytest.approx(plain["probability"], abs=0.05)
        assert rounded != plain, "it is not float32"


def _many(found: Prediction | list[Prediction]) -> list[Prediction]:
    assert isinstance(found, list)
    return found


def test_softmax_does_not_overflow() -> None:
    rows = probabilities(np.array([[1000.0, 0.0], [-1000.0, -1000.0]], np.float32))
    np.testing.assert_allclose(rows, [[1, 0], [0.5, 0.5]])
