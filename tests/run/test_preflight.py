"""What a run refuses when it starts is refused before: by a dry run, and by the command itself."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.run.runs import small_options, train
from torch import nn

import conveyor as package
from conveyor import models
from conveyor.errors import UserError

Command = Callable[..., tuple[int, str, str]]

SMALL = small_options(updates=1).command()[2:]


@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry", "run"])
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--lr-factors", "fc:2", "baes:2"], ["--lr-factors baes", "resnet8", "did you mean bias"]),
        (["--lr-factors", "fc:2", "zzzz:2"], ["--lr-factors zzzz", "it has conv1, bn1, layer1"]),
        (["--train-only", "fc", "^layre1"], ["--train-only ^layre1", "did you mean layer1"]),
        (["--decay-exclude", "layer9"], ["--decay-exclude layer9", "did you mean layer"]),
        (["--optimizer", "lars", "--lars-exclude", "norm", "nrom"], ["--lars-exclude nrom", "did you mean norm"]),
    ],
)
def test_a_name_that_no_parameter_has_is_refused(
    conveyor: Command, tmp_path: Path, words: list[str], parts: list[str], dry: list[str]
) -> None:
    code, _, error = conveyor("train", *SMALL, *words, "--run-dir", tmp_path / "run", *dry)
    assert (code, len(error.splitlines())) == (2, 1)
    for part in parts:
        assert part in error
    assert not (tmp_path / "run").exists()


def test_a_name_in_a_file_of_options_or_from_python_is_the_users_own(conveyor: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("lr-factors: [heda:2]\n")
    assert conveyor("train", *SMALL, "--config", file, "--dry-run")[0] == 2
    given = {name: value for name, value in small_options(tmp_path / "run").changed().items() if name != "model"}
    for model in ("resnet8", nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(288, 10))):
        with pytest.raises(UserError, match="--decay-exclude heda"):
            package.train(model=model, decay_exclude=["heda"], **given)


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["--norm", "none", "--decay-exclude", "norm"], "--decay-exclude norm means no parameter of resnet8"),
        (["--config", "elsewhere"], "--lr-factors head means no parameter of resnet8"),
    ],
)
def test_a_kind_or_a_shipped_configuration_may_mean_nothing_in_a_model(
    conveyor: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], note: str
) -> None:
    from conveyor.options import file

    entry = file.Configurations.from_files({"configs/x.yml": "elsewhere: {lr-factors: [head:0.2, fc:2]}"})
    monkeypatch.setattr(file, "shipped", lambda: entry)
    loud = [word for word in SMALL if word != "--quiet"]
    assert conveyor("train", *loud, *words, "--dry-run")[0] == 0
    code, out, error = conveyor("train", *loud, *words, "--run-dir", tmp_path / "run")
    assert code == 0, error
    assert (out + error).count(note) == 1
    assert "fc means" not in out + error


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--splits", "layer2", "layer9"], ["no layer 'layer9'", "nearest"]),
        (["--splits", "layer3", "layer2"], ["put them in order"]),
        (["--layout", "1x2", "--stages", "2", "--split-include", "nowhere"], ["--split-include"]),
        (["--weights", "absent.safetensors"], ["no weights file absent.safetensors"]),
        (["--checkpoint-path", "absent"], ["nothing at absent"]),
        (["--stages", "99"], ["99 stages need 98 places to split", "at most"]),
        (["--optimizer", "os:system"], ["--optimizer os:system", "no class"]),
        (["--optimizer", "torch.optim:Nope"], ["--optimizer torch.optim:Nope", "no class"]),
        (["--image-size", "1000000"], ["32 images of 1000000 pixels", "choose a smaller --image-size"]),
    ],
)
def test_a_dry_run_looks_splits_and_weights_up(
    conveyor: Command, monkeypatch: pytest.MonkeyPatch, words: list[str], parts: list[str]
) -> None:
    monkeypatch.setenv("CONVEYOR_MODELS", "")
    code, out, error = conveyor("train", "--model", "resnet8", *words, "--dry-run")
    assert (code, out, len(error.splitlines())) == (2, "", 1)
    for part in parts:
        assert part in error


def saved(path: Path, **changes: Any) -> Path:
    state = models.build("resnet8", **{"num_classes": 10, "in_channels": 1, **changes}).state_dict()
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save({"state_dict": state}, path)
    return path


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_a_dry_run_reads_the_names_and_shapes_of_the_weights(conveyor: Command, tmp_path: Path, name: str) -> None:
    words = ["train", "--model", "resnet8", "--dry-run", "--weights"]
    assert conveyor(*words, saved(tmp_path / f"right-{name}"))[0] == 0
    other = saved(tmp_path / f"classes-{name}", num_classes=7)
    code, _, error = conveyor(*words, other)
    assert (code, "--replace-head" in error) == (2, True)
    assert conveyor(*words, other, "--replace-head")[0] == 0
    code, _, error = conveyor(*words, saved(tmp_path / f"norm-{name}", norm="none"))
    assert (code, "does not fit the model" in error) == (2, True)
    whole = other.read_bytes()
    other.write_bytes(whole[: len(whole) // 2])
    code, _, error = conveyor(*words, other)
    assert (code, "is no safetensors file" in error) == (2, True)


def test_a_dry_run_looks_at_the_checkpoint_it_would_go_on_from(conveyor: Command, tmp_path: Path) -> None:
    train(tmp_path / "run", updates=2, updates_per_checkpoint=2)
    words = ["train", *small_options(updates=4).command()[2:], "--dry-run"]
    for start in ("--checkpoint-path", "--weights"):
        assert conveyor(*words, start, tmp_path / "run")[0] == 0
        code, _, error = conveyor(*words, start, tmp_path / "run", "--norm", "none")
        assert (code, "does not fit the model" in error) == (2, True)
    # A run that goes on has its weights already: what it once began with may be gone.
    again = ["--run-dir", tmp_path / "run", "--resume", "auto", "--weights", "gone.pth"]
    assert conveyor(*words, *again)[0] == 0


def test_a_model_that_cannot_be_outlined_is_built(
    conveyor: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVEYOR_MODELS", "")
    file = tmp_path / "nets.py"
    file.write_text(
        "from torch import nn\n"
        "def small(num_classes, in_channels):\n"
        "    net = nn.Sequential(nn.Conv2d(in_channels, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes))\n"
        "    assert net[0].weight.abs().sum().item() > 0\n"
        "    return net\n"
    )
    words = ["train", "--model", f"{file}:small", "--dry-run", "--splits"]
    assert conveyor(*words, "3")[0] == 0
    assert conveyor(*words, "9")[0] == 2


def test_torch_stays_out_where_there_is_nothing_to_look_up(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    words = ["train", "--dry-run", "--decay-exclude", "norm", "1d", "--stages", "2", "--splits", "auto"]
    done = python(
        f"import sys; from conveyor.cli import main; assert main({words}) == 0; assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("layout", ["1x1", "2x1", "1x2"])
def test_a_filter_that_matches_nothing_is_the_same_error_on_every_layout(conveyor: Command, layout: str) -> None:
    words = "train --dry-run --model resnet8 --stages 2 --accumulation 2 --split-include nowhere --layout"
    code, _, error = conveyor(*words.split(), layout)
    assert code == 2
    assert "--split-include and --split-exclude leave 0" in error
