"""Whole runs as users start them, on three layouts: equal files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.exact import differences

DATA = Path(os.environ.get("CONVEYOR_TEST_DATA", Path.home() / ".cache" / "conveyor-data"))
CIFAR10 = DATA / "cifar-10-batches-bin"
QUIET = ["--quiet", "--no-report", "--no-tensorboard", "--device", "cpu"]


def train(folder: Path, layout: str, *options: str) -> Path:
    """A run of its own with real workers."""
    command = [sys.executable, "-m", "conveyor", "train", "--run-dir", str(folder), "--layout", layout]
    subprocess.run([*command, *options, *QUIET], check=True)
    assert (folder / "result.json").exists()
    return folder


def check(place: Path, layouts: tuple[str, ...], *options: str) -> None:
    """The runs have equal checkpoints and metrics; the runs themselves may not be empty."""
    expected = train(place / "1x1", "1x1", *options)
    checkpoints = [path.name for path in (expected / "checkpoints").iterdir() if path.name.isdigit()]
    assert checkpoints
    for layout in layouts:
        assert differences(train(place / layout, layout, *options), expected) == []


@pytest.mark.conformance
@pytest.mark.timeout(900)
def test_the_default_run(tmp_path: Path) -> None:
    # The default batch of 32 in four slots: one slot could not be spread.
    batch = ["--micro-batch-size", "8", "--accumulation", "4"]
    check(tmp_path / "plain", ("2x1",), *batch)
    check(tmp_path / "stages", ("2x1", "1x2"), *batch, "--stages", "2")


@pytest.mark.conformance
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    not CIFAR10.is_dir(), reason="CIFAR-10 is not on this machine: its binary files go into CONVEYOR_TEST_DATA"
)
def test_three_epochs_of_cifar10(tmp_path: Path) -> None:
    cifar = ["--data", "cifar10", "--data-dir", str(CIFAR10), "--model", "cifar_resnet20", "--epochs", "3"]
    batches = ["--micro-batch-size", "32", "--accumulation", "4", "--stages", "2"]
    check(tmp_path, ("2x1", "1x2"), *cifar, *batches)
