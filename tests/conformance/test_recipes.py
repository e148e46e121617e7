"""A shortened run of each named recipe: three updates of a small batch of photographs, everything else as it stands there."""

import json
import math
from pathlib import Path

import pytest
from tests.conformance.made_data import jpeg, photograph

from conveyor.cli import main
from conveyor.monitor.csvfile import read_rows
from conveyor.options import Options
from conveyor.options.file import configuration
from conveyor.run.folder import read_options

pytestmark = pytest.mark.conformance

RECIPES = (
    "resnet50_v2",
    "resnet50_a1",
    "resnet50_a2",
    "resnet50_a3",
    "efficientnetv2_s_progressive",
    "progressive_small",
)
SHORT = ["--micro-batch-size", "4", "--replicas", "2", "--accumulation", "1", "--updates", "3", "--layout", "1x1", "--threads", "1",
         "--image-size", "64", "--progressive-image-size", "0:32", "1:48", "--validation-resize", "72", "--updates-per-log", "1", "--warmup", "1up"]  # fmt: skip


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 JPEG files of 4 classes, training and validation."""
    root = tmp_path_factory.mktemp("photographs")
    for number in range(40):
        folder = root / ("train" if number < 32 else "val") / f"class{number % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(jpeg(photograph(number, number % 4)))
    return root


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_trains(name: str, photographs: Path, tmp_path: Path) -> None:
    words = ["train", "--config", name, "--data", "folder", "--data-dir", str(photographs), *SHORT]
    if name.startswith("efficientnetv2"):
        words += ["--model", "efficientnet_b0"]  # its own network needs torchvision
    assert main([*words, "--run-dir", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["updates"] == 3
    losses = [float(row["loss"]) for row in read_rows(tmp_path / "run" / "metrics.csv")]
    assert losses
    assert all(math.isfinite(loss) and loss > 0 for loss in losses)
    asked, used = Options.from_mapping(configuration(name)[0]), read_options(tmp_path / "run")
    assert (used.optimizer.optimizer, used.optimizer.loss, used.data.augment, used.data.repeated_augmentation, used.model.survival) == (
        asked.optimizer.optimizer, asked.optimizer.loss, asked.data.augment, asked.data.repeated_augmentation, asked.model.survival,
    )  # fmt: skip
