"""Split names of every dialect lead to the right layer; wrong ones to a sentence that helps."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from conveyor import models
from conveyor.errors import UserError
from conveyor.models.splits import resolve
from conveyor.models.units import Unit, count, counted, trace
from conveyor.pipeline.balance import automatic_splits
from conveyor.plan.estimate import estimated
from conveyor.plan.hardware import this_cpu
from conveyor.plan.splits import stage_times


@cache
def units_of(name: str, **options: object) -> tuple[Unit, ...]:
    with torch.device("meta"):
        model = models.build(name, image_size=64, **options)
    return tuple(trace(model, 64))


def path_at(model: str, name: str, **options: object) -> str:
    units = units_of(model, **options)
    (index,) = resolve(model, units, [name])
    return units[index].path


@pytest.mark.parametrize(
    ("model", "name", "path"),
    [
        # tensorflow1: ResNet, ResNeXt and the later renaming
        ("resnet50", "b1/2/relu", "layer1.2.act3"),
        ("resnet50", "b3/5/relu", "layer3.5.act3"),
        ("resnet18", "b3/0/relu", "layer3.0.act2"),
        ("resnext14", "b2/0/relu", "layer2.0.act3"),
        ("resnet50", "b2/1", "layer2.1.conv1"),
        ("resnet50", "stage2/unit4/relu", "layer2.3.act3"),
        ("resnet50", "reduce_mean", "avgpool"),
        ("resnet50", "fc1", "fc"),
        # tensorflow1: EfficientNet
        ("efficientnet_b0", "block2b", "blocks.1.1.conv_pw"),
        ("efficientnet_b0", "block4a", "blocks.3.0.conv_pw"),
        ("efficientnet_b0", "block6a", "blocks.5.0.conv_pw"),
        ("efficientnet_b0", "block2a/SE", "blocks.1.0.se.mean"),
        ("efficientnet_b0", "block2a/b", "blocks.1.0.conv_dw"),
        ("efficientnet_b0", "block2a/c", "blocks.1.0.conv_pwl"),
        ("efficientnet_b0", "block5c", "blocks.4.2.conv_pw"),
        ("efficientnet_b0", "block1a/c", "blocks.0.0.conv_pw"),
        ("efficientnet_b1", "block2c", "blocks.1.2.conv_pw"),
        ("efficientnet_b0", "Top", "conv_head"),
        # tensorflow2
        ("resnet50", "conv2_block2_out", "layer1.1.act3"),
        ("resnet50", "conv3_block1_out", "layer2.0.act3"),
        ("resnet50", "conv4_block2_out", "layer3.1.act3"),
        ("resnet50", "conv3_block1_0_conv", "layer2.0.downsample.0"),
        ("resnet50", "conv3_block1_2_relu", "layer2.0.act2"),
        ("resnet50", "conv3_block1_add", "layer2.0.add"),
        ("resnet50", "pool1_pad", "maxpool"),
        ("resnet50", "predictions", "fc"),
        ("cifar_resnet8", "conv2_block1_post_addition_relu", "layer1.0.act2"),
        ("cifar_resnet8", "conv3_block1_layer1_conv_ds", "layer2.0.conv1"),
        ("cifar_resnet8", "conv3_block1_shortcut", "layer2.0.downsample"),
        ("cifar_resnet8", "fc_layer", "fc"),
        ("toy_model_bn", "conv2d_1", "conv2d_1"),
        ("toy_model_bn", "flatten", "flatten"),
        ("toy_model_bn", "bn_1", "bn_1"),
        # pytorch: torchvision, efficientnet_pytorch, timm
        ("resnet50", "layer1/2", "layer1.2.conv1"),
        ("resnet50", "layer3/3", "layer3.3.conv1"),
        ("resnet50", "layer2/0/downsample/0", "layer2.0.downsample.0"),
        ("resnet50", "layer2/1/relu", "layer2.1.act1"),
        ("efficientnet_b0", "_blocks/1/_project_conv", "blocks.1.0.conv_pwl"),
        ("efficientnet_b0", "_blocks/4/_bn1", "blocks.2.1.bn2"),
        ("efficientnet_b0", "_blocks/10", "blocks.4.2.conv_pw"),
        ("efficientnet_b0", "_bn1", "bn2"),
        ("efficientnet_b0", "_fc", "classifier"),
        ("efficientnet_b0", "blocks/3/0/conv_pw", "blocks.3.0.conv_pw"),
        ("mobilenet_v2", "features/2/conv/0/0", "blocks.1.0.conv_pw"),
        ("mobilenet_v2", "features/2/conv/2", "blocks.1.0.conv_pwl"),
        ("mobilenet_v2", "classifier/1", "classifier"),
        ("mobilenet_v3_large", "mb_block/2/seq/0", "blocks.1.1.conv_pw"),
        ("squeezenet", "fire5", "features.7.squeeze"),
        # our own: module path, container, regular expression
        ("resnet50", "layer4", "layer4.0.conv1"),
        ("resnet50", "layer2.0.bn3", "layer2.0.bn3"),
        ("resnet50", r"layer3.*conv2", "layer3.0.conv2"),
        ("efficientnet_b0", r"blocks/5/\d/se", "blocks.5.0.se.mean"),
    ],
)
def test_name(model: str, name: str, path: str) -> None:
    assert path_at(model, name) == path


def test_flat_and_lettered_names_of_efficientnet_agree() -> None:
    letters = ["1a", "2a", "2b", "3a", "3b", "4a", "4b", "4c", "5a", "5b", "5c", "6a", "6b", "6c", "6d", "7a"]
    for flat, letter in enumerate(letters):
        assert path_at("efficientnet_b0", f"_blocks/{flat}") == path_at("efficientnet_b0", f"block{letter}")


def test_group_norm_has_its_keras_names() -> None:
    assert path_at("resnet18", "conv2_block1_1_gn", norm="group") == "layer1.0.bn1"


def test_several_names_in_order_and_a_pattern_moves_on() -> None:
    units = units_of("resnet50")
    points = resolve("resnet50", units, ["b1/2/relu", "layer2.*conv3", "layer2.*conv3"])
    assert [units[point].path for point in points] == ["layer1.2.act3", "layer2.0.conv3", "layer2.1.conv3"]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["b1/9/relu"], r"no layer 'b1/9/relu'.*b1/0/relu|b1/1/relu|b1/2/relu"),
        (["conv3_block1_outt"], "conv3_block1_out"),
        (["xyzzy"], "some that it has"),
        (["layer3", "layer2"], "'layer2' is before 'layer3'"),
        (["layer3", "conv4_block1_1_conv"], "the same place as"),
        (["conv1"], "first stage would be empty"),
        (["layer[2"], "no regular expression"),
        (["layer9.*"], "no layer"),
    ],
)
def test_wrong_names(names: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        resolve("resnet50", units_of("resnet50"), names)


def test_units_carry_the_figures_of_the_model() -> None:
    with torch.device("meta"):
        model = models.build("resnet50")
    units = trace(model, 224)
    assert sum(unit.parameters for unit in units) == 25_557_032
    assert sum(unit.multiply_adds for unit in units) == 4_089_184_256
    conv = next(unit for unit in units if unit.path == "layer2.0.conv2")
    assert conv.shape == (128, 28, 28)
    assert conv.multiply_adds == 128 * 128 * 9 * 28 * 28
    assert conv.activation_bytes == 4 * 128 * 28 * 28
    inside = next(unit for unit in units if unit.path == "layer2.1.bn1")
    assert inside.crossing_bytes == 4 * (512 + 128) * 28 * 28
    assert units[0].crossing_bytes == 4 * 3 * 224 * 224


def test_tracing_leaves_a_real_model_alone() -> None:
    model = models.build("cifar_resnet8", num_classes=4)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trace(model, 32)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_published_multiply_adds() -> None:
    assert count("efficientnet_b0").multiply_adds == pytest.approx(0.39e9, rel=0.02)
    assert count("mobilenet_v2").multiply_adds == pytest.approx(300e6, rel=0.01)
    assert count("mobilenet_v3_large").multiply_adds == pytest.approx(219e6, rel=0.02)
    assert counted("cifar_resnet20", 32, 10).multiply_adds == pytest.approx(40.8e6, rel=0.01)


class Halves(nn.Module):
    """Two halves of the channels go on in one value."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.other = nn.Conv2d(3, 8, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.stem(x).chunk(2, 1)
        return torch.cat([self.one(one), self.other(other)], 1)


def test_no_stage_begins_where_several_tensors_go_on_in_one_value() -> None:
    units = trace(Halves(), 16)
    assert [unit.path for unit in units if unit.inside] == ["getitem", "getitem:2"]
    with pytest.raises(
        UserError, match="no stage of halves can begin at 'getitem', where several tensors go on in one value"
    ):
        resolve("halves", units, ["getitem"])
    assert automatic_splits(units, 5) == [1, 4, 5, 6]
    assert resolve("halves", units, ["chunk", "one"]) == [1, 4]


def test_a_plan_begins_no_stage_there() -> None:
    with torch.device("meta"):
        model = estimated(Halves(), 16, 3, this_cpu(2, 1e11))
    table = stage_times(model, 4)
    inside = [number for number, unit in enumerate(model.units) if unit.inside]
    assert inside == [2, 3]
    assert np.isinf(table[inside]).all()
    assert np.isinf(table[:, inside]).all()
    assert np.isfinite(table[1, 4])
