"""docs/extending.md, followed: its nine additions are made in a copy of the package, each in the files that its row names."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from tests.docs.test_docs import BLOCK, ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text()
SIGN = next(match["body"] for match in BLOCK.finditer(PAGE) if "class SignSgd" in match["body"])
NET = """
\"\"\"One convolution.\"\"\"

from torch import nn


def make(*, num_classes, in_channels, norm):
    return nn.Sequential(
        nn.Conv2d(in_channels, 8, 3, bias=norm.conv_bias),
        norm.layer(8),
        norm.activation(nn.ReLU(), 8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, num_classes),
    )
"""
OPENER = """
def _bright(options, split, image_size, channels):
    labels = np.arange(64 if split == "train" else 32) % 4
    return MemoryDataset(np.repeat(labels, 64).reshape(-1, 8, 8, 1).astype(np.uint8) * 60, labels, 4)


_openers: dict[str, Opener] = {"bright": _bright}
"""
PLAN = """
        if data.augment == "darker":
            plan = torch.zeros(len(samples), 1, operations.WIDTH, dtype=torch.float64)
            plan[:, 0, 0] = operations.CODES.index("brightness")
            plan[:, 0, 1] = 1 - 0.1 * keyed.uniform(*key[:1], "darker", epoch, samples, count=1)[:, 0]
            plans.append(plan)
"""
ENGINE = """

class PlainEngine(Engine):
    name = "plain"

    def __init__(self, graph, threads):
        super().__init__(graph.preprocessing.image_shape, threads)
        self.graph = graph

    def _run(self, images):
        import torch

        with torch.inference_mode():
            return self.graph(torch.from_numpy(images.copy())).numpy()
"""

Edit = tuple[str, str, str]
"""A file, a text that it holds once, and what is put in its place: `...` is the text itself."""
ADDITIONS: dict[str, list[Edit]] = {
    "a model": [
        ("models/plain.py", "", NET),
        (
            "models/catalogue.py",
            "def _small_nets() -> Iterator[Entry]:\n",
            '...    yield Entry("plain", "plain", {}, image_size=8, num_classes=4)\n',
        ),
    ],
    "a data set": [
        (
            "data/catalogue.py",
            '        ("mnist", "MNIST handwritten digits", ',
            ('        ("bright", "Four levels", dataclasses.replace(_GREY, train_images=64, validation_images=32, image_size=8, '
            "num_classes=4), {}),\n..."),
        ),
        ("data/open.py", "\n_openers: dict[str, Opener] = {}\n", OPENER),
    ],
    "an optimiser": [
        ("optim/optimizer.py", "def make_rule(", SIGN.replace("# optim/optimizer.py\n", "") + "\n\n..."),
        (
            "optim/optimizer.py",
            "    match chosen.optimizer:\n",
            '...        case "sign":\n            return SignSgd()\n',
        ),
        ("options/units.py", 'OPTIMIZERS = ("sgd", ', '..."sign", '),
    ],
    "a schedule": [
        (
            "optim/schedule.py",
            "        return end + (1 - end) * math.pow(",
            '        if form == "root":\n            return math.sqrt(1 - share)\n...',
        ),
        ("options/optimizer.py", 'choices=("constant", ', '..."root", '),
    ],
    "an augmentation": [
        ("data/transform/prepare.py", '\n        if data.augment == "trivialaugment":', PLAN + "..."),
        ("options/data.py", 'choices=("none", "randaugment", ', '..."darker", '),
    ],
    "a loss": [
        (
            "training/loss.py",
            '        if self.kind == "bce":\n',
            ('        if self.kind == "squares":\n'
            "            wrong = logits.softmax(dim=1) - self.dense(target, logits.shape[1])\n"
            "            return wrong.square().sum(dim=1).mean()\n..."),
        ),
        ("options/optimizer.py", 'choices=("cross-entropy", ', '..."squares", '),
    ],
    "a metric": [
        (
            "evaluate/accuracy.py",
            "    per_class = torch.zeros(",
            "    sure = torch.zeros(1, dtype=torch.int64, device=world.device)\n...",
        ),
        (
            "evaluate/accuracy.py",
            "            totals[batch.slot] = ",
            "            sure += (logits.softmax(dim=1).amax(dim=1) > 0.3).sum()\n...",
        ),
        ("evaluate/accuracy.py", "world.sum_over_all([", "...sure, "),
        ("evaluate/accuracy.py", "        images=images_seen,\n", "...        sure=int(sure) * share,\n"),
        ("evaluate/accuracy.py", "    @property\n    def thresholds(", "    sure: float = 0.0\n\n..."),
        ("evaluate/accuracy.py", '            "loss": self.loss,\n', '...            "sure": self.sure,\n'),
        ("monitor/records.py", 'VALIDATION_COLUMNS = (\n    "name",\n', '...    "sure",\n'),
    ],
    "an engine": [
        ("infer/__init__.py", 'ENGINES = ("auto", ', '..."plain", '),
        (
            "infer/engines/engine.py",
            "        return tuple(fitting)\n",
            '        if self.graph is not None:\n            fitting.append("plain")\n...',
        ),
        (
            "infer/engines/engine.py",
            "    from conveyor.infer.engines.openvino_engine import OpenVinoEngine\n",
            '    if engine == "plain":\n        return PlainEngine(source.graph, threads)\n...',
        ),
        ("infer/engines/engine.py", "\n\ndef open_engine(", ENGINE + "..."),
    ],
    "an option": [
        (
            "options/run.py",
            "    quiet: bool = option(",
            '    greeting: str = option("none", "The first word of a run.", changes_result=False)\n...',
        ),
        ("run/describe.py", "    return [\n        f\"{what}: {length}", '    return [\n        f"{spec.options.run.greeting} {what}: {length}'),
    ],
}  # fmt: skip
RUN = (
    "train --model plain --data bright --optimizer sign --lr-schedule root --learning-rate 0.01 --augment darker --loss squares "
    "--greeting welcome --epochs 2 --micro-batch-size 8 --accumulation 2 --threads 1 --no-tensorboard --no-report"
)


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package that has all additions."""
    place = tmp_path_factory.mktemp("extended")
    package = place / "src" / "conveyor"
    shutil.copytree(ROOT / "src" / "conveyor", package, ignore=shutil.ignore_patterns("__pycache__"))
    for edits in ADDITIONS.values():
        for name, there, text in edits:
            file, before = package / name, (package / name).read_text() if there else ""
            assert before.count(there) == 1, f"{name} does not hold {there!r} once"
            file.write_text(before.replace(there, text.replace("...", there, 1), 1) if there else text)
    return place


def test_every_addition_of_the_page_stays_in_the_files_of_its_row() -> None:
    rows = dict(re.findall(r"^\| \[(.+?)\]\(#[\w-]+\) \| (.+) \|$", PAGE, re.MULTILINE))
    assert list(rows) == list(ADDITIONS)
    for name, edits in ADDITIONS.items():
        files = {file for file, _, _ in edits}
        assert len(files) <= 2
        row = rows[name].replace("NAME", "plain")
        if name == "an option":  # the second file is whichever reads it
            assert [file for file in files if file.startswith("options/")]
        else:
            assert all(f"`{file}`" in row for file in files), (name, files)


def test_all_additions_together_make_a_run(extended: Path) -> None:
    def conveyor(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "conveyor", *words], cwd=extended, capture_output=True, text=True, timeout=250,
            env={**os.environ, "PYTHONPATH": str(extended / "src")},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = conveyor(*RUN.split(), "--layout", "1x1", "--run-dir", "runs/one")
    assert "welcome plain (" in said
    assert "on bright: 8 updates" in said
    conveyor(*RUN.split(), "--layout", "2x1", "--run-dir", "runs/two")
    assert "identical" in conveyor("compare", "runs/one", "runs/two")
    with (extended / "runs/one/validation.csv").open() as file:
        found = list(csv.DictReader(file))[-1]
    assert 0 <= float(found["sure"]) <= 100
    with (extended / "runs/one/metrics.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert float(last["lr"]) == pytest.approx(0.01 * (1 / 8) ** 0.5)
    Image.new("L", (8, 8), 180).save(extended / "one.png")
    answers = [
        conveyor("predict", "runs/one", "one.png", "--json", "--engine", engine) for engine in ("plain", "torch")
    ]
    ours, usual = (json.loads(text) for text in answers)
    assert [one["label"] for one in ours] == [one["label"] for one in usual]
