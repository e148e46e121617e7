"""Trainable parameter counts of every published or tabulated variant, built on the meta device."""

import pytest
import torch

from conveyor import models
from conveyor.models import catalogue
from conveyor.models.layers.conv import windows

RESNETS = {
    "resnet14": 10_064_936,
    "resnet18": 11_689_512,
    "resnet26": 15_995_176,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "cifar_resnet8": 75_290,
    "cifar_resnet14": 172_506,
    "cifar_resnet20": 269_722,
    "cifar_resnet32": 464_154,
    "cifar_resnet44": 658_586,
    "cifar_resnet56": 853_018,
    "cifar_resnet110": 1_727_962,
    "cifar_bottleneck11": 127_642,
    "cifar_bottleneck29": 313_114,
    "cifar_bottleneck38": 405_850,
    "cifar_bottleneck47": 498_586,
    "cifar_bottleneck56": 591_322,
    "cifar_bottleneck65": 684_058,
    "resnext14": 9_411_880,
    "resnext26": 15_389_480,
    "resnext50": 25_028_904,
    "resnext101": 44_177_704,
    "resnext101_32x8d": 88_791_336,
    "resnext152": 59_951_400,
    "cifar_resnext11": 403_162,
    "cifar_resnext29": 1_293_786,
}
VARIANTS = [
    ("resnet10", {"project_first": True}, 5_423_016),
    ("resnet18", {"project_first": True}, 11_693_736),
    ("resnet34", {"project_first": True}, 21_801_896),
    ("cifar_resnext11", {"wide": True}, 1_815_370),
    ("cifar_resnext29", {"wide": True}, 4_775_754),
    ("resnext14", {"in_channels": 4}, 9_415_016),
    ("cifar_resnet8", {"in_channels": 4, "shortcut": "B"}, 78_186),
    ("cifar_resnet20", {"in_channels": 4, "shortcut": "B"}, 272_618),
    ("resnet50", {"in_channels": 4, "stride_in_1x1": True}, 25_560_168),
    ("resnext50", {"in_channels": 4, "stride_in_1x1": True}, 25_032_040),
    ("efficientnet_b0", {"in_channels": 4}, 5_288_836),
    ("efficientnet_b1", {"in_channels": 4}, 7_794_472),
    ("resnext101", {"group_dim": 8}, 88_791_336),
]
EFFICIENTNETS = {  # depthwise with ratio 6, groups of 16 with ratio 4
    "b0": (5_288_548, 5_913_796),
    "b1": (7_794_184, 8_332_120),
    "b2": (9_109_994, 9_504_122),
    "b3": (12_233_232, 12_590_896),
    "b4": (19_341_616, 19_328_168),
    "b5": (30_389_784, 28_715_320),
    "b6": (43_040_704, 39_825_464),
    "b7": (66_347_960, 59_210_264),
    "cifar": (1_077_932, 1_683_420),
}
OTHERS = {
    "efficientnet_lite0": 4_652_008,
    "mobilenet_v2": 3_504_872,
    "mobilenet_v3_small": 2_542_856,
    "mobilenet_v3_large": 5_483_032,
    "squeezenet": 1_248_424,
    "cifar_fast": 1_972_792,
    "toy_model": 242,
    "toy_model_bn": 266,
}


def count(name: str, **options: object) -> int:
    with torch.device("meta"):
        model = models.build(name, num_classes=catalogue.entry(name).num_classes, **options)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "expected"), (RESNETS | OTHERS).items())
def test_parameters(name: str, expected: int) -> None:
    assert count(name) == expected


@pytest.mark.parametrize(("name", "options", "expected"), VARIANTS)
def test_parameters_of_variants(name: str, options: dict[str, object], expected: int) -> None:
    assert count(name, **options) == expected


@pytest.mark.parametrize("size", EFFICIENTNETS)
def test_parameters_of_efficientnet(size: str) -> None:
    depthwise, grouped = EFFICIENTNETS[size]
    assert count(f"efficientnet_{size}") == depthwise
    assert count(f"efficientnet_{size}", group_dim=16, expand_ratio=4) == grouped


def test_groups_that_divide_are_plain_and_others_overlap() -> None:
    assert windows(96, 16) == (6, 16)
    assert windows(40, 16) == (2, 20)
    assert windows(24, 16) == (1, 24)
    assert windows(7, 1) == (7, 1)
    assert windows(56, 16) == (4, 18)


@pytest.mark.parametrize("channels", [56, 58, 62])
def test_overlapping_windows_cover_every_channel_and_run(channels: int) -> None:
    from conveyor.models.layers.conv import WindowedConv, spatial_conv

    conv = spatial_conv(channels, channels, 3, 2, group_dim=16, bias=False, same=False)
    assert isinstance(conv, WindowedConv)
    assert set(conv.index.tolist()) == set(range(channels))
    assert conv(torch.zeros(1, channels, 8, 8)).shape == (1, channels, 4, 4)


def test_shipped_table_equals_what_is_built() -> None:
    assert set(catalogue.counts()) == set(catalogue.known())
    for name, expected in (RESNETS | OTHERS).items():
        assert catalogue.counts()[name].parameters == expected
