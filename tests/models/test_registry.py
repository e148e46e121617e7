"""Building by name: aliases, options that do not belong, a user's own models, initial weights."""

import math
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from conveyor import models
from conveyor.errors import UserError
from conveyor.models import catalogue, user_module
from conveyor.models.initialise import initialise
from conveyor.models.layers.norms import BatchNorm, NormChoice
from conveyor.options.model import ModelOptions


def test_names_in_any_spelling() -> None:
    assert catalogue.entry("EfficientNet-B0").name == "efficientnet_b0"
    assert catalogue.entry("resnet8").name == "cifar_resnet8"
    assert catalogue.entry("resnet14").name == "resnet14"
    assert catalogue.entry("mobilenet").name == "mobilenet_v2"
    with pytest.raises(UserError, match="did you mean 'resnet50'"):
        models.build("resnet_50x")


def test_options_that_a_family_lacks_are_named() -> None:
    with pytest.raises(UserError, match="has no option 'shortcut'"):
        models.build("efficientnet_b0", shortcut="A")
    with pytest.raises(
        UserError, match=r"^resnet18 has no option 'dropout' \(choose from zero_init_gamma, [a-z0-9_, ]+\)\.$"
    ) as caught:
        models.build("resnet18", dropout=0.1)
    assert "layers" not in str(caught.value), "part of its name, no option"
    with pytest.raises(UserError, match="did you mean 'cardinality'"):
        models.build("resnext50", cardinalty=3)
    with pytest.raises(UserError, match="no norm be chosen"):
        models.build("squeezenet", norm="group")
    with pytest.raises(UserError, match="wide"):
        models.build("resnet50", wide=True)
    with pytest.raises(UserError, match="expansion"):
        models.build("mobilenet_v3_small", expand_ratio=4)


def test_build_from_takes_the_option_section() -> None:
    options = ModelOptions(model="cifar_resnet8", num_classes=6, norm="group", norm_groups=8)
    model = models.build_from(options, in_channels=1)
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 6)
    assert not [module for module in model.modules() if isinstance(module, BatchNorm)]
    other = models.build_from(ModelOptions(), name="toy_model", num_classes=3, in_channels=3, image_size=60)
    assert other(torch.randn(2, 3, 60, 60)).shape == (2, 3)
    with pytest.raises(UserError, match="no model is named"):
        models.build_from(ModelOptions())


def test_a_users_model_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_module, "_registered", {})

    @models.register("mine")
    def mine(num_classes: int, in_channels: int, norm: NormChoice, width: int = 4) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(in_channels, width, 1), norm.layer(width), nn.Flatten(), nn.LazyLinear(num_classes)
        )

    made = models.build("mine", num_classes=3, width=5, norm="group", norm_groups=5)
    assert made[1].num_groups == 5
    with pytest.raises(UserError, match="did you mean 'mine'"):
        models.build("mime")


NETS = """
from torch import nn
from conveyor import models

def small(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))

@models.register("wide")
def wide(num_classes, in_channels):
    return nn.Sequential(nn.Conv2d(in_channels, 8, 1), models.norms.BatchNorm(8), nn.Flatten(), nn.LazyLinear(num_classes))
"""
LOGS = """
with open({log!r}, "a") as log:
    log.write({folder!r})
"""


def test_code_is_imported_when_the_user_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_module, "_registered", {})
    monkeypatch.delenv(user_module.VARIABLE, raising=False)
    file = tmp_path / "nets.py"
    file.write_text(NETS)
    with pytest.raises(UserError, match=f"set {user_module.VARIABLE}="):
        models.build(f"{file}:small")
    with pytest.raises(UserError, match="there is no model 'wide'"):
        models.build("wide")
    monkeypatch.setenv(user_module.VARIABLE, "")
    user_module.admit(f"{file}:small")
    user_module.admit("resnet50")
    assert os.environ[user_module.VARIABLE] == str(file)
    assert isinstance(models.build(f"{file}:small")[0], nn.Flatten)
    assert isinstance(models.build("wide")[1], BatchNorm)
    with pytest.raises(UserError, match="there is no 'absent'"):
        models.build(f"{file}:absent")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(user_module.VARIABLE, "nets.py")
    assert isinstance(models.build("nets.py:small")[0], nn.Flatten)
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.setenv(user_module.VARIABLE, "broken.py")
    with pytest.raises(UserError, match="ZeroDivisionError"):
        models.build("wide2")


def test_files_of_one_name_in_two_folders_are_executed_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_module, "_registered", {})
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "nets.py").write_text(NETS + LOGS.format(log=str(tmp_path / "log"), folder=folder))
    monkeypatch.setenv(user_module.VARIABLE, f"{tmp_path}/a/nets.py,{tmp_path}/b/nets.py")
    for _ in range(2):
        user_module.registered()
    assert (tmp_path / "log").read_text() == "ab"


def test_blocks_are_the_residual_blocks() -> None:
    assert models.blocks(models.build("cifar_resnet8")) == ["layer1.0", "layer2.0", "layer3.0"]
    assert len(models.blocks(models.build("efficientnet_b0"))) == 16


def test_same_seed_same_weights() -> None:
    torch.manual_seed(3)
    first = models.build("cifar_resnet8").state_dict()
    torch.manual_seed(3)
    second = models.build("cifar_resnet8").state_dict()
    assert all(torch.equal(value, second[key]) for key, value in first.items())


@pytest.mark.parametrize(
    ("rule", "zero", "projection_zero"),
    [("none", [], []), ("all", [0, 1], []), ("unprojected", [1], []), ("projection", [1], [0])],
)
def test_zero_initialised_gammas(rule: str, zero: list[int], projection_zero: list[int]) -> None:
    stage = models.build("resnet26", zero_init_gamma=rule).get_submodule("layer2")
    assert [index for index, block in enumerate(stage) if block.bn3.weight.eq(0).all()] == zero
    assert [
        i for i, block in enumerate(stage) if block.downsample and block.downsample[1].weight.eq(0).all()
    ] == projection_zero


def test_variances_and_bounds_of_the_initialisations() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(64, 128, 3, bias=False)
    grouped = nn.Conv2d(64, 128, 3, groups=4, bias=False)
    dense = nn.Linear(256, 128)
    model = nn.Sequential(layer, grouped, dense)

    def variance(module: nn.Conv2d | nn.Linear) -> float:
        return module.weight.var().item()

    initialise(model, "tensorflow")
    assert variance(layer) == pytest.approx(1 / (64 * 9), rel=0.05)
    assert layer.weight.abs().max() <= 2.0001 * math.sqrt(1 / (64 * 9)) / 0.87962566
    bound = math.sqrt(6 / (256 + 128))
    assert dense.weight.abs().max() <= bound
    assert variance(dense) == pytest.approx(bound**2 / 3, rel=0.05)
    initialise(model, "tensorflow", scale=2)
    assert variance(layer) == pytest.approx(2 / (128 * 9), rel=0.05)
    assert variance(grouped) == pytest.approx(2 / (16 * 9), rel=0.05)
    initialise(model, "glorot-channels")
    bound = math.sqrt(6 / (64 + 128))
    assert bound * 0.99 < layer.weight.abs().max() <= bound
    initialise(model, "torch")
    assert variance(layer) == pytest.approx(2 / (128 * 9), rel=0.05)


def test_catalogue_needs_no_torch(python) -> None:  # type: ignore[no-untyped-def]
    done = python(
        "import sys; from conveyor.models import catalogue; catalogue.counts(); assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr
