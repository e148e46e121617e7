"""`conveyor predict` and reports with the names of files that other people chose."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.commands.typed import Command
from tests.data.photos import make_folder

from conveyor.cli import main

ODD = os.fsdecode(b"b\xfe")
"""The name of a class that is no UTF-8."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    make_folder(home / "photos", 4, 2, classes=("ape", ODD))
    words = ["--data-dir", home / "photos", "--model", "resnet8", "--image-size", 16, "--micro-batch-size", 4]
    more = ["--layout", "1x1", "--updates", 2, "--run-dir", home / "run"]
    assert main([str(word) for word in ["train", *words, *more]]) == 0
    return home


def test_names_that_are_no_utf8_are_written_with_their_bytes(conveyor: Command, home: Path) -> None:
    assert b"b\xfe" in (home / "run" / "report.html").read_bytes()
    assert conveyor("predict", home / "run", home / "photos" / "validation", "--csv", home / "answers.csv")[0] == 0
    assert b"/b\xfe/0.JPEG," in (home / "answers.csv").read_bytes()


def test_an_audit_reads_the_names_that_validate_wrote(conveyor: Command, home: Path) -> None:
    answers = home / "answers-of-validate.csv"
    words = ["--checkpoint-path", home / "run", "--answers", answers, "--run-dir", home / "validated"]
    assert conveyor("validate", *words)[0] == 0
    words = ["--data-dir", home / "photos", "--answers", answers, "--out", home / "audit"]
    code, out, error = conveyor("data", "audit", *words)
    assert (code, (home / "audit" / "audit.html").exists()) == (0, True), out + error


def test_answers_go_to_standard_output_and_control_characters_do_not(
    conveyor: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = home / "two\nlines\x1b[2J.jpg"
    photo.write_bytes((home / "photos" / "train" / "ape" / "0.JPEG").read_bytes())
    monkeypatch.chdir(home)
    code, out, _ = conveyor("predict", "run", photo)
    assert (code, len(out.splitlines()), "two\\nlines\\x1b[2J.jpg" in out) == (0, 2, True)
    code, out, _ = conveyor("predict", "run", home / "photos" / "train" / "ape" / "0.JPEG", "--csv", "-")
    assert (code, out.splitlines()[0][:17], Path("-").exists()) == (0, "file,label,probab", False)


def test_a_folder_without_a_run_is_called_so(conveyor: Command, home: Path) -> None:
    code, _, err = conveyor("predict", home / "photos", home / "photos" / "train" / "ape" / "0.JPEG")
    assert (code, "which is no run: give a run folder" in err) == (2, True)


def test_an_encoding_without_the_characters_of_a_name_prints_escapes(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "conveyor", "train", "--dry-run", "--run-dir", str(tmp_path / "ü日")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert (done.returncode, r"\xfc\u65e5" in done.stdout) == (0, True), done.stderr
