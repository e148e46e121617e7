"""Published weights by name: where they are looked for, how they are fetched, what a run makes of them."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from tests.data.formats.test_download import Server, server
from tests.data.photos import make_folder

from conveyor import models
from conveyor.data import pretrained
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.options.layers import FINE_TUNING, layered
from conveyor.spec import resolve

NAME = "tf_efficientnet_lite0"
CONFIG = {"architecture": NAME, "pretrained_cfg": {"input_size": [3, 64, 64], "crop_pct": 0.5, "interpolation": "bicubic",
          "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}}  # fmt: skip
Command = Callable[..., tuple[int, str, str]]


__all__ = ["server"]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CONVEYOR_CACHE", "HF_HOME", "TORCH_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)


def lite0(num_classes: int = 7) -> bytes:
    torch.manual_seed(0)
    model = models.build("efficientnet_lite0", num_classes=num_classes, padding="same")
    return save(dict(model.state_dict()))


def test_a_name_is_fetched_from_the_hub_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    root = f"timm/{NAME}.in1k/resolve/main"
    server.files = {f"{root}/model.safetensors": b"weights", f"{root}/config.json": b"{}"}
    found = pretrained.find(NAME)
    assert found.read_bytes() == b"weights"
    assert (found.parent / "config.json").exists()
    asked = len(server.requests)
    assert pretrained.find(f"timm/{NAME}") == pretrained.find(f"{NAME}.in1k") == found
    assert len(server.requests) == asked


def test_the_file_that_is_missing_is_the_one_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    server.files = {f"timm/{NAME}.in1k/resolve/main/model.safetensors": b"weights"}
    with pytest.raises(UserError, match=r"resolve/main/config.json \(there are none of that name\)"):
        pretrained.find(NAME)
    with pytest.raises(UserError, match=r"weights tf_efficientnet_lit0 \(did you mean 'tf_efficientnet_lite0' or "):
        pretrained.find("tf_efficientnet_lit0")
    with pytest.raises(UserError, match=r"are not here \(did you mean 'resnet50' or "):
        pretrained.find("resnet5", download=False)


def test_a_broken_transfer_leaves_nothing(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    root = f"timm/{NAME}.in1k/resolve/main"
    server.files = {f"{root}/model.safetensors": b"w" * 5000, f"{root}/config.json": b"{}"}
    server.cut = [1, 100]
    with pytest.raises(UserError, match="cannot fetch the weights"):
        pretrained.find(NAME)
    assert not list((tmp_path / "CONVEYOR_CACHE").rglob("model.safetensors"))


def test_torchvision_files_are_checked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVEYOR_TORCHVISION", server.address)
    content = b"weights of torchvision"
    monkeypatch.setitem(pretrained.TORCHVISION, "resnet18", hashlib.sha256(content).hexdigest()[:8])
    name = f"resnet18-{pretrained.TORCHVISION['resnet18']}.pth"
    server.files = {name: content + b" and more"}
    with pytest.raises(UserError, match="SHA-256 differs"):
        pretrained.find("torchvision/resnet18")
    server.files = {name: content}
    assert pretrained.find("torchvision/resnet18").read_bytes() == content


@pytest.mark.parametrize("place", ["weights-dir", "cache", "hub", "torch"])
def test_a_copy_on_this_machine_needs_no_network(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    name = "torchvision/resnet18" if place == "torch" else NAME
    file = {
        "weights-dir": tmp_path / "mine" / f"{NAME}.pth",
        "cache": tmp_path / "CONVEYOR_CACHE" / "weights" / f"{NAME}.safetensors",
        "hub": tmp_path / "HF_HOME" / "hub" / f"models--timm--{NAME}.in1k" / "snapshots" / "1" / "model.safetensors",
        "torch": tmp_path / "TORCH_HOME" / "hub" / "checkpoints" / "resnet18-f37072fd.pth",
    }[place]
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    assert pretrained.find(name, str(tmp_path / "mine") if place == "weights-dir" else None) == file


@pytest.mark.parametrize("name", [NAME, "torchvision/resnet18", "http://127.0.0.1:9/some/net.pth"])
def test_without_network_one_sentence_says_where_to_put_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conveyor: Command
) -> None:
    for variable in ("HF_ENDPOINT", "CONVEYOR_TORCHVISION"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    make_folder(tmp_path / "photos", train=2, validation=1)
    code, _, err = conveyor("train", "--data-dir", tmp_path / "photos", "--pretrained", name)
    assert code == 2
    assert err.count("\n") == 1
    assert f"cannot fetch the weights {name}" in err
    folder = tmp_path / "CONVEYOR_CACHE" / "weights"
    assert f"put its file at {folder}" in err
    where = Path(err.strip().rpartition("put its file at ")[2])
    where.write_bytes(b"weights")
    assert pretrained.find(name) == where, "the file is found where the sentence says"
    with pytest.raises(UserError, match="--no-download forbids"):
        pretrained.find("resnet34", download=False)


@pytest.mark.parametrize(("name", "hub"), [(NAME, "nohost"), ("http://[/net.pth", "http://127.0.0.1:9")])
def test_what_is_no_address_is_one_sentence(name: str, hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub)
    with pytest.raises(UserError, match="cannot fetch the weights"):
        pretrained.find(name)


@pytest.mark.parametrize("name", ["../secret", "a/b/c", "resnet 50", "file:///etc/passwd"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        pretrained.find(name)


def test_fine_tuning_lies_under_what_is_said() -> None:
    plain = layered([({"model": "resnet50"}, "")])
    assert plain == Options().replace(model="resnet50")
    tuned = layered([({"pretrained": NAME, "learning-rate": 0.1}, "")])
    assert tuned.schedule.learning_rate == 0.1
    assert tuned.optimizer.optimizer == FINE_TUNING["optimizer"]
    assert layered([({"weights": "some.pth", "replace_head": True}, "")]).optimizer.optimizer == "adamw"
    assert layered([({"weights": "some.pth"}, "")]).optimizer.optimizer == "momentum"
    assert layered([({"pretrained": NAME, "updates": 5}, "")]).length.updates == 5


def test_photographs_to_a_fine_tuned_run(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                         conveyor: Command) -> None:  # fmt: skip
    """Head, preprocessing and model are those of the weights; the run goes on and predicts when they are gone."""
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    root = f"timm/{NAME}.in1k/resolve/main"
    server.files = {f"{root}/model.safetensors": lite0(), f"{root}/config.json": json.dumps(CONFIG).encode()}
    make_folder(tmp_path / "photos", train=4, validation=1)
    words = (
        "--data-dir",
        tmp_path / "photos",
        "--micro-batch-size",
        4,
        "--layout",
        "1x1",
        "--run-dir",
        tmp_path / "run",
    )
    tuning = ("--pretrained", NAME, "--freeze", "backbone", "--unfreeze-at", "1up", "--layer-decay", 0.75)
    code, out, err = conveyor("train", *words, *tuning, "--updates", 2)
    assert code == 0, err
    assert "few to learn from nothing" not in out
    shutil.rmtree(tmp_path / "CONVEYOR_CACHE" / "weights")
    server.files = {}
    code, out, err = conveyor("restore", "--checkpoint-path", tmp_path / "run", "--updates", 3)
    assert code == 0, err
    code, out, err = conveyor("predict", tmp_path / "run", tmp_path / "photos" / "validation", "--json")
    assert code == 0, err
    assert {one["label"] for one in json.loads(out)} <= {"ape", "bee"}
    options = Options.from_yaml(tmp_path / "run" / "options.yml")
    assert (options.model.model, options.model.image_size, options.model.num_classes) == ("efficientnet_lite0", 64, 2)
    assert (options.data.validation_resize, options.data.interpolation) == (128, "bicubic")
    assert (options.data.normalization, options.model.norm_momentum) == ("0.5,0.5,0.5/0.5,0.5,0.5", 0.1)
    assert (options.model.dropout, options.model.survival) == (0.0, 1.0)


def test_few_photographs_are_advised_to_fine_tune(tmp_path: Path) -> None:
    make_folder(tmp_path, train=4, validation=1)
    options = Options().replace(data_dir=str(tmp_path), micro_batch_size=4)
    advice = [note for note in resolve(options).notes if "--pretrained" in note]
    assert len(advice) == 1
    assert advice[0].startswith("8 photographs are few to learn from nothing: add --pretrained tf_efficientnet_lite0")
    assert not [note for note in resolve(options.replace(data=None, data_dir=None)).notes if "--pretrained" in note]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"unfreeze_at": "1ep"}, "nothing is frozen"),
        ({"freeze": "backbone", "train_only": ["fc"]}, "exclude each other"),
    ],
)
def test_contradictions_are_refused(words: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        resolve(Options().replace(**words))
