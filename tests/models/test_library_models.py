"""Models of timm and torchvision: train, cut, restore, recompute, export and serve; one sentence where there is none."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.testing import assert_close

from conveyor import models
from conveyor.errors import UserError
from conveyor.infer.graph import fold_norms
from conveyor.models import library_models, units
from conveyor.models.layers.adopt import NormAct, adopt_norms, adopt_random_layers, check_adopted
from conveyor.models.layers.norms import BatchNorm, commit
from conveyor.models.layers.stochastic import DropConnect, Dropout
from conveyor.options import Options
from conveyor.spec import RunSpec, resolve
from conveyor.training.build_model import build_model
from conveyor.training.split_units import split_units

HERE = Path(__file__).parent
PEERS = Path(os.environ.get("CONVEYOR_PEERS", HERE.parent.parent / ".peers")).absolute()
FAMILIES = (
    "timm/convnext_atto", "timm/regnety_002", "timm/resnet18d", "timm/seresnet18", "timm/tf_efficientnetv2_b0",
    "timm/mobilenetv4_conv_small", "timm/vgg11_bn", "timm/densenet121", "torchvision/regnet_y_400mf",
    "torchvision/mobilenet_v3_small", "torchvision/resnet18", "torchvision/densenet121", "torchvision/convnext_tiny",
    "torchvision/efficientnet_v2_s", "torchvision/vgg11_bn", "timm/regnetx_002",
)  # fmt: skip
with_timm = [
    pytest.mark.conformance,
    pytest.mark.skipif(not (PEERS / "timm" / "bin").exists(), reason="timm is not installed: make peers"),
    pytest.mark.timeout(1500),
]


class BatchNormAct2d(nn.BatchNorm2d):
    """Of the form of timm's."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.drop(super().forward(x)))


class StochasticDepth(nn.Module):
    p, mode = 0.25, "row"


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_without_the_package_one_sentence_says_what_to_install(package: str) -> None:
    name = f"{package}/convnext_tiny"
    if library_models.has(package, "convnext_tiny"):
        pytest.skip(f"{package} is installed")
    with pytest.raises(UserError, match=f"the model {name} is {package}'s.*pip install {package}"):
        models.build(name)


def test_a_norm_with_its_activation_keeps_both() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), BatchNormAct2d(4)).eval()
    plain[1].running_mean.normal_()
    x, names = torch.randn(2, 3, 8, 8), plain.state_dict().keys()
    expected = plain(x)
    adopted = adopt_norms(plain)
    assert type(adopted[1]) is NormAct
    assert adopted.state_dict().keys() == names
    assert torch.equal(adopted(x), expected)
    torch.testing.assert_close(fold_norms(adopted)(x), expected)
    adopted.train()(x)
    assert adopted[1].pending_count.item() == 1
    assert expected.min() == 0


def test_random_layers_become_ours_and_what_cannot_is_refused() -> None:
    model = adopt_random_layers(nn.Sequential(nn.Dropout(0.1), StochasticDepth(), nn.Dropout2d(0.0)))
    assert [type(layer) for layer in model[:2]] == [Dropout, DropConnect]
    assert [layer.rate for layer in model[:2]] == [0.1, 0.25]
    assert check_adopted(model, "x") is model
    for layer in (nn.BatchNorm3d(2), nn.Dropout2d(0.5)):
        with pytest.raises(UserError, match="m has a layer 0"):
            check_adopted(nn.Sequential(layer), "m")


def test_a_registered_model_with_plain_layers_is_adopted() -> None:
    @models.register("plain_layers")
    def make(num_classes: int, in_channels: int) -> nn.Module:
        layers = [nn.Conv2d(in_channels, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, num_classes))

    made = models.build("plain_layers", num_classes=2, norm_momentum=0.3)
    assert type(made[1]) is BatchNorm
    assert made[1].momentum == 0.3
    assert made[2].label == "2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("families")
    draw = np.random.default_rng(0)
    for colour, name in enumerate(("ant", "bee", "cat")):
        (made / "photos" / name).mkdir(parents=True)
        for number in range(12):
            pixels = draw.integers(0, 256, (70, 80, 3)).astype(np.uint8)
            pixels[..., colour] = 255
            Image.fromarray(pixels).save(made / "photos" / name / f"{number}.png")
    return made


def run(*command: str, timeout: float = 1400) -> subprocess.CompletedProcess[str]:
    """A Python program that finds timm and torchvision behind its own packages."""
    changed = {"CONVEYOR_PEERS": str(PEERS), "PYTHONPATH": str(HERE.parent / "peers_path"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=timeout, env={**os.environ, **changed}
    )


@pytest.mark.parametrize("model", [pytest.param(name, marks=with_timm) for name in FAMILIES])
def test_a_family_trains_is_cut_restored_recomputed_exported_and_served(folder: Path, model: str) -> None:
    done = run(str(HERE / "library_family.py"), str(folder), model)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.pop("difference") < 1e-3
    assert told.pop("predicted") < 1e-3
    assert told.pop("validated") == 3
    assert told.pop("updates") == 8
    assert told == dict.fromkeys(("finite", "cut", "restored", "recomputed", "served"), True)


MAKE_WEIGHTS = """
import sys, torch, timm, torchvision
from safetensors.torch import save_file
torch.manual_seed(0)
save_file(timm.create_model("mobilenetv4_conv_small").state_dict(), sys.argv[1] + "/mobilenetv4_conv_small.e2400_r224_in1k.safetensors")
torch.save(torchvision.models.get_model("shufflenet_v2_x0_5").state_dict(), sys.argv[1] + "/shufflenet_v2_x0_5.pth")
"""


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        pytest.param("timm/mobilenetv4_conv_small", "--interpolation bicubic", marks=with_timm),
        pytest.param("mobilenetv4_conv_small", "--interpolation bicubic", marks=with_timm),
        pytest.param("torchvision/shufflenet_v2_x0_5", "--validation-resize 256", marks=with_timm),
    ],
)
def test_published_weights_bring_a_librarys_model(folder: Path, tmp_path: Path, asked: str, told: str) -> None:
    made = run("-c", MAKE_WEIGHTS, str(tmp_path))
    assert made.returncode == 0, made.stderr
    words = f"train --data-dir {folder}/photos --pretrained {asked} --weights-dir {tmp_path} --run-dir {tmp_path}/run"
    done = run(
        "-m", "conveyor", *words.split(), *["--updates", "1", "--micro-batch", "2", "--threads", "1", "--no-report"]
    )
    assert done.returncode == 0, done.stderr
    assert told in done.stdout
    kept = (tmp_path / "run" / "options.yml").read_text()
    assert f"model: {asked if '/' in asked else 'timm/' + asked}" in kept
    assert "norm_momentum: 0.1" in kept
    photo = min((folder / "photos").rglob("*.png"))
    done = run("-m", "conveyor", "predict", str(tmp_path / "run"), str(photo), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["label"] in ("ant", "bee", "cat")


@pytest.mark.parametrize(
    "words", [pytest.param("timm/convnext_att", marks=with_timm), pytest.param("timm/levit_128s", marks=with_timm)]
)
def test_what_there_is_not_and_what_cannot_be_trained_is_one_sentence(words: str) -> None:
    done = run("-m", "conveyor", "train", "--model", words, "--updates", "1")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "convnext_atto" in done.stderr or "cannot take images of shape [1, 1, 8, 8]" in done.stderr


def test_blocks_of_a_library_are_cut_only_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer inside a block would be the best place; `--splits` may still name it."""
    spec = resolve(Options().replace(data="digits", model="resnet8", stages=2))
    named = spec.replace(options=spec.options.replace(splits=("layer1.0.bn1",)))
    model = build_model(spec)
    found = units.trace(model, 8, 1)
    costs = [float(unit.path in ("layer1.0.conv1", "layer1.0.bn1")) for unit in found]

    def point(of: RunSpec) -> str:
        (only,) = split_units(of, model, found, costs)
        return found[only].path

    assert point(spec) == "layer1.0.bn1"
    monkeypatch.setattr(library_models, "is_library", lambda model: True)
    assert point(spec) == "fc", "outside all blocks, and the least to send"
    assert point(named) == "layer1.0.bn1"


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 5)])
def test_a_norm_of_vectors_becomes_ours(shape: tuple[int, ...]) -> None:
    plain, x = nn.BatchNorm1d(4), torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    nn.init.uniform_(plain.weight, 0.5, 2)
    ours = adopt_norms(nn.Sequential(copy.deepcopy(plain)))[0]
    assert isinstance(ours, BatchNorm)
    assert_close(ours(x), plain(x), rtol=1e-5, atol=1e-6)
    assert torch.equal(ours.running_mean, torch.zeros(4)), "until the update's end"
    commit([ours])
    assert_close(ours.running_mean, plain.running_mean)
    assert_close(ours.running_var, plain.running_var)
    assert_close(ours.eval()(x), plain.eval()(x), rtol=1e-5, atol=1e-6)
    assert list(ours.state_dict()) == list(plain.state_dict())
