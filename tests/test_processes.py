"""The processes that a command starts import the libraries, whatever lies in the folder it is started in."""

import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = "train --data digits --model resnet8 --updates 2 --layout 2x1 --replicas 2 --no-report --quiet --run-dir run"
EXPORT = "export run --format onnx --out model"
REQUEST = "request model --seconds 0.5 --clients 2"


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder with names of libraries in it, as a user's experiments have."""
    (tmp_path / "triton").mkdir()
    for name in ("random", "numpy", "safetensors", "conveyor"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the current folder was imported')\n")
    return tmp_path


def test_modules_of_the_current_folder_are_not_imported(trap: Path) -> None:
    # -P: as the installed command, which does not look there either.
    for words in (TRAIN, EXPORT, REQUEST):
        command = [sys.executable, "-P", "-m", "conveyor", *words.split()]
        done = subprocess.run(command, cwd=trap, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
