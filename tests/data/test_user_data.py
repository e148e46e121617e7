"""Training with objects of the caller's own, from Python."""

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tests.run.runs import small_options
from torch import nn

import conveyor
from conveyor.data.user_data import adopt, first, to_pixels
from conveyor.errors import UserError
from conveyor.models.layers.adopt import adopt_norms
from conveyor.models.layers.norms import BatchNorm
from conveyor.options import Options
from conveyor.run import in_process

COMMON: dict[str, Any] = {
    name: value for name, value in small_options(updates=6, updates_per_epoch=3).changed().items() if name != "model"
}


def arrays(count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Bright images are of class 1, dark ones of class 0."""
    labels = np.arange(count) % 2
    noise = np.random.default_rng(count).integers(0, 60, (count, 8, 8, 1))
    return (noise + 150 * labels[:, None, None, None]).astype(np.uint8), labels


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    )


def test_own_model_and_own_arrays(tmp_path: Path) -> None:
    model = net()
    before = model[0].weight.detach().clone()
    run = conveyor.train(
        model=model,
        data=(arrays(64), arrays(20)),
        run_dir=tmp_path / "run",
        **{**COMMON, "updates": 30, "learning_rate": 0.2},
    )
    assert run.accuracy is not None
    assert run.accuracy > 90
    assert not torch.equal(model[0].weight, before)
    assert run.best_checkpoint is not None
    assert [row["update"] for row in run.metrics][-1] == 30
    assert run.validations[-1]["images"] == 20
    (record,) = conveyor.validate(model=model, data=(arrays(64), arrays(20)), **COMMON)
    assert record["accuracy"] == run.accuracy
    assert "done after 30 updates" in str(run)


class Pictures:
    """A map-style data set as most programs have one."""

    classes = ("dark", "bright")

    def __init__(self, count: int) -> None:
        self.images, self.labels = arrays(count)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index, ..., 0]), int(self.labels[index])


def test_a_named_model_on_a_map_style_data_set(tmp_path: Path) -> None:
    run = conveyor.train(model="resnet8", data=(Pictures(32), Pictures(10)), run_dir=tmp_path / "run", **COMMON)
    assert run.updates == 6
    assert run.validations[-1]["images"] == 10


def test_a_registered_model_is_a_name(tmp_path: Path) -> None:
    from conveyor import models

    @models.register("my_own_net")
    def make(num_classes: int, in_channels: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(in_channels, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes)
        )

    run = conveyor.train(model="my_own_net", run_dir=tmp_path / "run", **COMMON)
    assert run.updates == 6


NETS = """
from torch import nn
from conveyor import models

@models.register("tiny")
def tiny(num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(in_channels, 4, 3, padding=1, bias=False), models.norms.BatchNorm(4), nn.ReLU(), nn.Dropout2d(0.3),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes),
    )
"""


def test_a_file_of_models_on_the_command_line(tmp_path: Path) -> None:
    """Two workers find it, and draw what one draws; the run opens again only where the user names the file."""
    (tmp_path / "nets.py").write_text(NETS)
    plain = {name: value for name, value in os.environ.items() if name != "CONVEYOR_MODELS"}

    def conveyor_command(words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "conveyor", *words.split()],
            cwd=tmp_path, env={**plain, **variables}, capture_output=True, text=True, timeout=200,
        )  # fmt: skip

    short = "--updates 2 --micro-batch-size 8 --accumulation 2 --no-report --no-tensorboard"
    done = conveyor_command(f"train --model nets.py:tiny {short} --layout 2x1 --run-dir first")
    assert done.returncode == 0, done.stderr
    refused = conveyor_command("validate --checkpoint-path first")
    assert refused.returncode == 2
    assert "set CONVEYOR_MODELS=nets.py" in refused.stderr
    done = conveyor_command("validate --checkpoint-path first", CONVEYOR_MODELS="nets.py")
    assert done.returncode == 0, done.stderr
    done = conveyor_command(f"train --model tiny {short} --layout 1x1 --run-dir second", CONVEYOR_MODELS="nets.py")
    assert done.returncode == 0, done.stderr
    weights = [
        load_file(max((tmp_path / run / "checkpoints").glob("*/model.safetensors"))) for run in ("first", "second")
    ]
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


def test_runs_and_modules_are_validated_from_python(tmp_path: Path) -> None:
    run = conveyor.train(model="resnet8", run_dir=tmp_path / "run", **COMMON)
    records = conveyor.validate(checkpoint_path=run.folder)
    assert [record["update"] for record in records] == [3, 6]
    assert records[-1]["accuracy"] == run.accuracy


def test_data_that_cannot_be_read_is_one_sentence() -> None:
    images, labels = arrays(4)
    with pytest.raises(UserError, match="8-bit"):
        adopt((images.astype(np.float32), labels))
    with pytest.raises(UserError, match="square"):
        adopt((images[:, :4], labels))
    with pytest.raises(UserError, match="cannot be read"):
        adopt(3)


def test_pixels_of_every_kind() -> None:
    expected = torch.arange(12, dtype=torch.uint8).reshape(2, 2, 3)
    assert torch.equal(to_pixels(expected.numpy()), expected)
    assert torch.equal(to_pixels(expected.permute(2, 0, 1)), expected)
    assert torch.equal(to_pixels(expected.permute(2, 0, 1).float() / 255), expected)
    assert to_pixels(np.zeros((4, 4), np.uint8)).shape == (4, 4, 1)
    resized = torch.tensor([[-0.1, 0.5, 1.1]])  # as a bicubic filter leaves them
    assert to_pixels(resized).flatten().tolist() == [0, 128, 255]


@pytest.mark.parametrize(
    "image",
    [
        (torch.rand(3, 4, 4) - 0.5) / 0.25,
        torch.rand(3, 4, 4) * 255,
        torch.full((3, 4, 4), torch.nan),
        torch.full((3, 4, 4), 300, dtype=torch.int16),
        torch.full((4, 4), -1),
    ],
)
def test_pixels_that_eight_bits_cannot_hold_are_refused(image: torch.Tensor) -> None:
    """Normalised images were clamped, and whole numbers wrapped around: training went on, with other images."""
    with pytest.raises(UserError, match="the data set gives images with values from"):
        to_pixels(image)


def test_plain_batch_norms_follow_the_update() -> None:
    model = net()
    names = list(model.state_dict())
    parameters = [id(parameter) for parameter in model.parameters()]
    adopted = adopt_norms(model)
    assert isinstance(adopted[1], BatchNorm)
    assert list(adopted.state_dict()) == names
    assert [id(parameter) for parameter in adopted.parameters()] == parameters
    before = adopted[1].running_mean.clone()
    adopted(torch.randn(4, 1, 8, 8))
    assert torch.equal(adopted[1].running_mean, before)
    kept = adopt_norms(nn.Sequential(nn.BatchNorm2d(2, momentum=None), nn.BatchNorm2d(2, affine=False)))
    assert not any(isinstance(layer, BatchNorm) for layer in kept)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        ((6, 8, 8, 3), np.arange(5), "do not belong together"),
        ((6, 8, 8, 3), np.eye(6), "need --task multi-label"),
        ((6, 192), np.arange(6), "do not belong together"),
        ((0, 8, 8, 3), np.arange(0), "do not belong together"),
        ((6, 8, 8, 3), np.arange(6) + 0.5, "not fractions"),
        ((2, 8, 8, 3), np.array(["cat", "dog"]), "not fractions or names"),
    ],
)
def test_arrays_that_are_no_data_set_are_one_sentence(
    images: tuple[int, ...], labels: np.ndarray, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        conveyor.train(data=(np.zeros(images, np.uint8), labels), updates=1, run_dir=tmp_path / "run")


PETS = """
import numpy as np

labels = np.arange(48) % 2
images = (np.random.default_rng(0).integers(0, 60, (48, 8, 8, 1)) + 150 * labels[:, None, None, None]).astype(np.uint8)
pair = ((images[:32], labels[:32]), (images[32:], labels[32:]))


def photos():
    return pair
"""


def test_data_of_ones_own_on_the_command_line(tmp_path: Path) -> None:
    """A function or an object in a file: the same bits on any layout, limited, restored and opened only where it is named."""
    (tmp_path / "pets.py").write_text(PETS)

    def command(words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "conveyor", *words.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )

    same = "--model resnet8 --no-report --no-tensorboard --micro-batch 4 --accumulation 2 --epochs 2 --threads 1"
    for name, layout in (("photos", "1x1"), ("pair", "2x1")):
        done = command(f"train --data pets.py:{name} {same} --layout {layout} --run-dir {name}")
        assert done.returncode == 0, done.stderr
    assert "identical" in command("compare photos pair").stdout
    with open(tmp_path / "photos" / "validation.csv", encoding="utf-8") as file:
        assert {row["images"] for row in csv.DictReader(file)} == {"16"}
    done = command("restore photos --epochs 3 --run-dir more")
    assert done.returncode == 2
    assert "is code of somebody's own" in done.stderr
    done = command("restore photos --data pets.py:photos --epochs 3 --run-dir more")
    assert done.returncode == 0, done.stderr
    done = command("train --data pets.py:cats --dry-run")
    assert (done.returncode, "there is no 'cats' in" in done.stderr) == (2, True)
    Image.fromarray(np.full((8, 8), 200, np.uint8)).save(tmp_path / "bright.png")
    assert '"label": "1"' in command("predict photos bright.png --json").stdout


def test_only_the_first_samples_of_ones_own_data() -> None:
    _, train, _ = adopt((Pictures(10), None))
    assert len(first(train, 4)) == 4
    assert first(train, 10) is train


def test_what_cannot_be_done_with_objects_of_ones_own_is_refused(tmp_path: Path) -> None:
    images = np.zeros((8, 8, 8, 1), np.uint8)
    data = ((images, np.arange(8) % 2), (images, np.arange(8) % 2))
    (tmp_path / "pets.py").write_text(
        "import numpy as np\nphotos = (np.zeros((8, 8, 8, 1), np.uint8), np.arange(8) % 2)\n"
    )
    for named in (data, f"{tmp_path}/pets.py:photos"):
        for options in ({"folds": 2, "fold": 0}, {"group_by": "(.)"}, {"exclude_images": "some.txt"}):
            with pytest.raises(UserError, match="cannot divide data of your own"):
                conveyor.train(data=named, model="resnet8", run_dir=str(tmp_path / "run"), **options)
    with pytest.raises(UserError, match="needs a fold"):
        conveyor.train(data="digits", folds=2, run_dir=str(tmp_path / "run"))
    for layout in ("1x2", "2x1"):
        with pytest.raises(UserError, match=f"--layout {layout} needs several processes"):
            conveyor.train(data=data, model=nn.Linear(1, 1), layout=layout, stages=2, micro_batch_size=2)
    options = Options().replace(layout="1x2", stages=2, micro_batch_size=2)
    resolving, _ = in_process.prepared(options, nn.Linear(1, 1), data)
    with pytest.raises(UserError, match="cuts a module of your own into stages"):
        resolving(options)


class Drawing(nn.Module):
    """Draws in every way that torch has, and in none that is ours."""

    def __init__(self, num_classes: int = 2) -> None:
        super().__init__()
        self.conv, self.dropped, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Dropout2d(0.3), nn.Linear(4, num_classes)
        self.plain = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.dropout(self.dropped(self.conv(x)), 0.2, self.training).mean((2, 3))
        return self.head(self.plain(x + torch.rand_like(x)))


def stored(folder: Path, update: int = 6) -> bytes:
    return (folder / "checkpoints" / str(update) / "model.safetensors").read_bytes()


def test_what_ones_own_module_draws_is_the_same_after_a_restart(tmp_path: Path) -> None:
    """And the caller's generator is left as it was."""
    given: dict[str, Any] = {**COMMON, "data": (arrays(64), arrays(20)), "lr_schedule": "constant", "accumulation": 2}
    torch.manual_seed(1)
    first_state = Drawing().state_dict()
    before = torch.get_rng_state()
    for name, updates, resume in (("whole", 6, "no"), ("parts", 3, "no"), ("parts", 6, "auto")):
        module = Drawing()
        module.load_state_dict(first_state)
        torch.rand(len(name))  # what is drawn elsewhere
        torch.set_rng_state(before)
        conveyor.train(model=module, run_dir=tmp_path / name, resume=resume, **{**given, "updates": updates})
        assert torch.equal(torch.get_rng_state(), before)
    assert stored(tmp_path / "whole") == stored(tmp_path / "parts")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda m: m.append(nn.Linear(2, 7)),
            r"answers 8 images with \[8, 7\]: it should be a tensor of shape \[8, 2\]",
        ),
        (lambda m: m.append(nn.Linear(2, 1)), r"answers 8 images with \[8, 1\]"),
        (lambda m: m.append(nn.Unflatten(1, (2, 1))), r"answers 8 images with \[8, 2, 1\]"),
        (lambda m: m.append(nn.LSTM(2, 2)), "answers 8 images with a tuple"),
        (lambda m: m.double(), "0.weight of the model is torch.float64: make it float32"),
        (lambda m: m.requires_grad_(False), "nothing to train"),
    ],
)
def test_a_module_that_no_run_can_train_is_one_sentence(tmp_path: Path, change: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        conveyor.train(
            model=change(net()), data=(arrays(64), None), run_dir=tmp_path, **{**COMMON, "micro_batch_size": 8}
        )


def test_where_a_run_is_called_changes_no_bit(tmp_path: Path) -> None:
    given: dict[str, Any] = {**COMMON, "data": (arrays(64), arrays(20)), "model": "resnet8"}
    conveyor.train(run_dir=tmp_path / "plain", **given)
    for number, place in enumerate((torch.autocast("cpu", torch.bfloat16), torch.no_grad(), torch.inference_mode())):
        with place:
            conveyor.train(run_dir=tmp_path / str(number), **given)
        assert stored(tmp_path / str(number)) == stored(tmp_path / "plain")


def test_a_run_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = conveyor.train(run_dir="run", **COMMON)
    monkeypatch.chdir("/")
    assert run.best is not None
    assert run.best.is_dir()
    assert run.metrics
    assert conveyor.load(run).class_names


def test_one_callback_without_a_list(tmp_path: Path) -> None:
    (tmp_path / "heard.py").write_text(
        "class Note:\n    def on_end(self, record):\n        open(__file__ + '.end', 'w').close()\n"
    )
    conveyor.train(run_dir=tmp_path / "run", callback=f"{tmp_path}/heard.py:Note", **COMMON)  # type: ignore[arg-type]
    assert (tmp_path / "heard.py.end").exists()
    for wrong in ({"callback": print}, {"callback": [print]}, {"callbacks": print}):
        with pytest.raises(UserError, match=r"callbacks=\[...\]|should be a list of objects"):
            conveyor.train(run_dir=tmp_path / "other", **wrong, **COMMON)
