"""What the commands of every day print fits 80 columns where there is no terminal; only a path may be longer."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

WIDTH = 80
TRAIN = "train --epochs 2 --threads 1 --layout 1x1 --run-dir runs/a"
SAID = [
    ("validate runs/a", 0), ("validate runs/a --checkpoint best --infer-precision float32", 0), ("runs", 0),
    ("runs --filter nothing", 0), ("predict runs/a photos", 0), ("predict runs/a photos/one.png --top 10", 0),
    ("predict runs/a photos/bad.png", 1), ("export runs/a --out exported", 0), ("predict exported photos", 0),
    ("train --dry-run", 0), ("train --dry-run --epochs 3 --data-dir photos", 2), ("train --updates 2 --optimizer sgd --recompute block", 0),
    ("launch --instances 1 -- conveyor train --updates 2 --quiet", 0), ("launch -- train", 2),
    ("train --batchsize 3", 2), ("train --model resnet5 --data imagenet", 2), ("train --data-dir nowhere", 2),
    ("train --pretrained tf_efficientnet_lite0 --no-download --data-dir photos", 2), ("predict runs/a nothing.png", 2),
    ("restore runs/a", 0), ("validate --checkpoint-path runs/b", 2), ("serve nothing", 2), ("compare runs/a runs/a", 0),
    ("report runs/a", 0), ("export runs/a --out exported", 2), ("data verify photos", None),
]  # fmt: skip


FURTHER = [
    ("train --updates 44 --threads 1 --layout 1x1 --seed 1 --quiet --run-dir runs/c", 0), ("compare runs/a runs/c", 1),
    ("average runs/a --out averaged", 0), ("request --help", 0), ("serve --help", 0), ("batch-find --help", 0),
]  # fmt: skip


TABLES = [
    "models", "models show resnet50", "configs", "data list", "plan --help", "plan --model resnet50 --data imagenet --devices 8",
    "plan --model cifar_resnet20 --data cifar10 --cluster devices=8 mtbf=100h",
]  # fmt: skip
"""Their rows fold on a terminal; where there is none, a row is one line."""


def environment(place: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return {**kept, "CONVEYOR_CACHE": str(place / "cache"), "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"}


def told(place: Path, words: str, **variables: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "conveyor", *words.split()],
        capture_output=True, text=True, cwd=place, env=environment(place) | variables, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, (done.stdout + done.stderr).splitlines()


def too_long(lines: list[str]) -> list[str]:
    """A line of one word, which a path may be, cannot be folded."""
    return [line for line in lines if len(line) > WIDTH and " " in line.strip()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("width")
    (made / "photos").mkdir()
    draw = np.random.default_rng(0)
    for name in ("one", "a-photograph-with-a-name-that-is-not-short-at-all"):
        Image.fromarray(draw.integers(0, 256, (9, 8), dtype=np.uint8)).save(made / "photos" / f"{name}.png")
    code, lines = told(made, TRAIN)
    assert (code, too_long(lines)) == (0, [])
    assert any(line.startswith("update 88/88  epoch 2.00  loss ") for line in lines), lines
    (made / "photos" / "bad.png").write_bytes(b"no picture")
    return made


@pytest.mark.conformance
@pytest.mark.timeout(600)
def test_lines_fit(place: Path) -> None:
    """One test in order: the later commands need what the earlier ones wrote."""
    (place / "photos" / "bad.png").unlink()
    for words, expected in SAID:
        if "bad.png" in words:
            (place / "photos" / "bad.png").write_bytes(b"no picture")
        code, lines = told(place, words)
        assert lines, words
        assert too_long(lines) == [], words
        assert expected is None or code == expected, (words, lines)
        (place / "photos" / "bad.png").unlink(missing_ok=True)


def test_further_lines_fit(place: Path) -> None:
    for words, expected in FURTHER:
        code, lines = told(place, words)
        assert (code, too_long(lines)) == (expected, []), words


@pytest.mark.parametrize("words", TABLES)
def test_tables_fit_a_terminal(tmp_path: Path, words: str) -> None:
    code, lines = told(tmp_path, words, COLUMNS=str(WIDTH))
    assert (code, too_long(lines)) == (0, [])


def test_lines_of_a_server_fit(place: Path) -> None:
    words = "serve runs/a --port 0 --drain-delay 0 --ready-file ready"
    process = subprocess.Popen(
        [sys.executable, "-m", "conveyor", *words.split()],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=place, env=environment(place),
    )  # fmt: skip
    try:
        while not (place / "ready").exists() and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        lines = process.communicate(timeout=120)[0].splitlines()
    finally:
        process.kill()
    assert any(line.startswith("serving ") for line in lines), lines
    assert too_long(lines) == []


@pytest.mark.parametrize(
    ("words", "told_"),
    [("train --epoch 1", "there is no option --epoch (did you mean --epochs?)"),
     ("export runs/a --out x --format wrong", "--format cannot be 'wrong' (choose from"),
     ("train --log 3", "there is no option --log (did you mean --log")],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_nothing_before_it(place: Path, words: str, told_: str) -> None:
    code, lines = told(place, words)
    assert code == 2
    assert lines[0].startswith("conveyor: error: ")
    assert told_ in " ".join(line.strip() for line in lines)


def test_what_is_told_can_be_typed_here(place: Path) -> None:
    """Paths below the working folder are told without it; a stored run knows its folder by its full path."""
    for words, said in (
        ("restore runs/a --epochs 3", "next: conveyor serve runs/a"),
        ("report runs/a", "runs/a/report.html ("),
    ):
        code, lines = told(place, words)
        assert code == 0, lines
        assert any(line.startswith(said) for line in lines), lines


@pytest.mark.parametrize(
    ("words", "said"),
    [("train --callback nothing.py:Stop", "nothing.py: give the file that holds the code"),
     ("train --callback own.py:Stopp", "there is no 'Stopp' in own.py that can be called and makes a callback"),
     ("train --data own.py:pets", "there is no 'pets' in"),
     ("predict runs/a photos --engine onnx", "there is no engine 'onnx' (did you mean 'onnxruntime'")],
)  # fmt: skip
def test_a_wrong_name_is_told_with_the_right_one(place: Path, words: str, said: str) -> None:
    (place / "own.py").write_text("class Stop:\n    pass\n")
    code, lines = told(place, words)
    assert code == 2
    assert said in " ".join(line.strip() for line in lines)


def test_files_that_are_no_images_get_no_table(place: Path) -> None:
    (place / "bad.png").write_bytes(b"no picture")
    code, lines = told(place, "predict runs/a bad.png")
    assert code == 1
    assert not any(line.startswith("file ") for line in lines)


def test_the_text_after_a_name_is_folded_beside_it(place: Path) -> None:
    _, lines = told(place, "train --dry-run")
    (first,) = [number for number, line in enumerate(lines) if line.startswith("layout      1x1: ")]
    assert lines[first + 1].startswith(" " * 12 + lines[first + 1].strip()[0])
