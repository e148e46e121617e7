"""The models by name, without torch: family, architecture numbers, default image size, cached counts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from conveyor.errors import UserError, did_you_mean

_IMAGENET_NORM = {"norm_groups": 32}
_CIFAR_NORM = {"norm_groups": 16}
_MOBILE_NORM = {"norm_groups": 4, "norm_epsilon": 1e-3, "norm_momentum": 0.01}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One named model: `family` is the module `conveyor.models.<family>`, `arguments` what its `make` gets."""

    name: str
    family: str
    arguments: Mapping[str, Any]
    image_size: int
    num_classes: int = 1000
    aliases: tuple[str, ...] = ()
    norm: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a model costs at its default image size and class count: trainable parameters, multiply-adds per image."""

    parameters: int
    multiply_adds: int


def _resnets() -> list[Entry]:
    basic = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
    bottleneck = {14: (1, 1, 1, 1), 26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
    entries = [
        Entry(
            name=f"resnet{size}",
            family="resnet",
            arguments={"layers": layers, "bottleneck": size in bottleneck},
            image_size=224,
            norm=_IMAGENET_NORM,
            about=f"ResNet-{size}, {'bottleneck v1.5' if size in bottleneck else 'basic'} blocks",
        )
        for size, layers in sorted((basic | bottleneck).items())
    ]
    for size, layers in bottleneck.items():
        for group_dim in (4, 8) if size == 101 else (4,):
            name = f"resnext{size}" if group_dim == 4 else f"resnext{size}_32x{group_dim}d"
            entries.append(
                Entry(
                    name=name,
                    family="resnext",
                    arguments={"layers": layers, "group_dim": group_dim},
                    image_size=224,
                    aliases=(f"{name}_32x4d",) if group_dim == 4 else (),
                    norm=_IMAGENET_NORM,
                    about=f"ResNeXt-{size} 32x{group_dim}d",
                )
            )
    return entries


def _cifar_resnets() -> list[Entry]:
    entries = []
    for size in (8, 14, 20, 32, 44, 56, 110):
        repeats = (size - 2) // 6
        entries.append(
            Entry(
                name=f"cifar_resnet{size}",
                family="resnet",
                arguments={"layers": (repeats,) * 3, "bottleneck": False, "cifar": True},
                image_size=32,
                num_classes=10,
                aliases=() if size == 14 else (f"resnet{size}",),
                norm=_CIFAR_NORM,
                about=f"ResNet-{size} for small images, basic blocks",
            )
        )
    for family, name, title in (("resnet", "cifar_bottleneck", "ResNet"), ("resnext", "cifar_resnext", "ResNeXt")):
        for size in (11, 29, 38, 47, 56, 65):
            arguments: dict[str, Any] = {"layers": ((size - 2) // 9,) * 3, "cifar": True}
            if family == "resnet":
                arguments["bottleneck"] = True
            taken = family == "resnet" and size == 56
            entries.append(
                Entry(
                    name=f"{name}{size}",
                    family=family,
                    arguments=arguments,
                    image_size=32,
                    num_classes=10,
                    aliases=() if taken else (f"{family}{size}",),
                    norm=_CIFAR_NORM,
                    about=f"{title}-{size} for small images, bottleneck blocks",
                )
            )
    return entries


def _efficientnets() -> list[Entry]:
    scales = {
        "b0": (1.0, 1.0, 0.2, 224),
        "b1": (1.0, 1.1, 0.2, 240),
        "b2": (1.1, 1.2, 0.3, 260),
        "b3": (1.2, 1.4, 0.3, 300),
        "b4": (1.4, 1.8, 0.4, 380),
        "b5": (1.6, 2.2, 0.4, 456),
        "b6": (1.8, 2.6, 0.5, 528),
        "b7": (2.0, 3.1, 0.5, 600),
        "cifar": (0.5, 1.0, 0.0, 32),
        "lite0": (1.0, 1.0, 0.2, 224),
        "lite1": (1.0, 1.1, 0.2, 240),
        "lite2": (1.1, 1.2, 0.3, 260),
        "lite3": (1.2, 1.4, 0.3, 280),
        "lite4": (1.4, 1.8, 0.3, 300),
    }
    entries = []
    for size, (width, depth, dropout, image_size) in scales.items():
        arguments: dict[str, Any] = {"width_coefficient": width, "depth_coefficient": depth, "dropout": dropout}
        if size == "cifar":
            arguments["cifar"] = True
        if size.startswith("lite"):
            arguments["lite"] = True
        entries.append(
            Entry(
                name=f"efficientnet_{size}",
                family="efficientnet",
                arguments=arguments,
                image_size=image_size,
                num_classes=10 if size == "cifar" else 1000,
                norm=_MOBILE_NORM,
                about=f"EfficientNet-{size.capitalize()}",
            )
        )
    return entries


def _mobilenets() -> list[Entry]:
    v2 = Entry(
        name="mobilenet_v2",
        family="mobilenet",
        arguments={"variant": "v2"},
        image_size=224,
        aliases=("mobilenet", "mobilenetv2"),
        norm={"norm_groups": 4},
        about="MobileNet v2",
    )
    v3 = [
        Entry(
            name=f"mobilenet_v3_{size}",
            family="mobilenet",
            arguments={"variant": f"v3_{size}"},
            image_size=224,
            aliases=(f"mobilenetv3_{size}",),
            norm=_MOBILE_NORM,
            about=f"MobileNet v3 {size}",
        )
        for size in ("small", "large")
    ]
    return [v2, *v3]


def _small_nets() -> list[Entry]:
    toys = [
        Entry(
            name=name,
            family="toy",
            arguments={"normalised": name.endswith("bn")},
            image_size=32,
            num_classes=10,
            norm={"norm_groups": 4},
            about="two convolutions, for trying things out",
        )
        for name in ("toy_model", "toy_model_bn")
    ]
    squeezenet = Entry(
        name="squeezenet",
        family="squeezenet",
        arguments={},
        image_size=224,
        aliases=("squeezenet1_0",),
        about="SqueezeNet 1.0, without norms",
    )
    fast = Entry(
        name="cifar_fast",
        family="cifar_fast",
        arguments={},
        image_size=32,
        num_classes=10,
        norm={"norm_groups": 16, "norm_epsilon": 1e-12, "norm_momentum": 0.4},
        about="whitened input and six convolutions, to learn CIFAR-10 in minutes",
    )
    return [squeezenet, fast, *toys]


@cache
def known() -> dict[str, Entry]:
    """Every shipped model by its name, in the order of the list that `conveyor models` prints."""
    families = (_resnets(), _cifar_resnets(), _efficientnets(), _mobilenets(), _small_nets())
    return {entry.name: entry for entries in families for entry in entries}


@cache
def _names() -> dict[str, str]:
    names = {name: name for name in known()}
    for entry in known().values():
        for alias in entry.aliases:
            names.setdefault(alias, entry.name)
    return names


def canonical(name: str) -> str | None:
    """The catalogue's name for `name` (any case, `-` or `_`, or an alias); None if there is none."""
    return _names().get(name.strip().lower().replace("-", "_"))


def entry(name: str) -> Entry:
    """The entry of a model, or an error that names the nearest ones."""
    found = canonical(name)
    if found is None:
        raise UserError(f"there is no model {name!r}{did_you_mean(name, _names())}: `conveyor models` lists them all.")
    return known()[found]


@cache
def counts() -> dict[str, Counts]:
    """Parameters and multiply-adds of the shipped models, from the table that ships with the package."""
    table = json.loads(files("conveyor.models").joinpath("counts.json").read_text(encoding="utf-8"))
    return {name: Counts(*pair) for name, pair in table.items()}
