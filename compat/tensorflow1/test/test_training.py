"""The training program and the one after it, on generated images: `python3 -m pytest` in this folder's parent."""

import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent.parent
OPTIONS = ["--dataset", "cifar-10", "--generated-data", "--model-size", "8", "--batch-size", "8"]


def run(script: str, *words: str) -> str:
    command = [sys.executable, str(PROGRAMS / script), *OPTIONS, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_train_then_validate(tmp_path: Path) -> None:
    limits = ["--max-train-images", "16", "--max-validation-images", "8"]
    said = run("train.py", "--epochs", "1", "--logs-path", str(tmp_path / "run"), *limits)
    assert "top-1 accuracy" in said
    assert (tmp_path / "run" / "training.csv").is_file()
    validated = run("validation.py", "--restore-path", str(tmp_path / "run"), *limits)
    assert "throughput" in validated  # of generated images there is no accuracy
