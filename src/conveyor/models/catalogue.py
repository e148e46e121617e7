"""The models by name, without torch: family, architecture numbers, default image size, cached counts."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from typing import Any

from conveyor.errors import UserError, did_you_mean

_IMAGENET_NORM = {"norm_groups": 32}
_CIFAR_NORM = {"norm_groups": 16}
_MOBILE_NORM = {"norm_groups": 4, "norm_epsilon": 1e-3, "norm_momentum": 0.01}


@dataclass(frozen=True, slots=True)
class Entry:
    """One named model: `family` is the module `conveyor.models.<family>`, `arguments` what its `make` gets."""

    name: str
    family: str
    arguments: Mapping[str, Any]
    image_size: int = 224
    num_classes: int = 1000
    aliases: tuple[str, ...] = ()
    norm: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a model costs at its default image size and class count: trainable parameters, multiply-adds per image."""

    parameters: int
    multiply_adds: int


def _resnets() -> Iterator[Entry]:
    basic = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
    bottleneck = {14: (1, 1, 1, 1), 26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
    for size, layers in sorted((basic | bottleneck).items()):
        arguments = {"layers": layers, "bottleneck": size in bottleneck}
        about = f"ResNet-{size}, {'bottleneck v1.5' if size in bottleneck else 'basic'} blocks"
        yield Entry(f"resnet{size}", "resnet", arguments, norm=_IMAGENET_NORM, about=about)
    for size, layers in bottleneck.items():
        for group_dim in (4, 8) if size == 101 else (4,):
            names = (
                (f"resnext{size}", f"resnext{size}_32x4d") if group_dim == 4 else (f"resnext{size}_32x{group_dim}d",)
            )
            arguments = {"layers": layers, "bottleneck": True, "resnext": True, "group_dim": group_dim}
            about = f"ResNeXt-{size} 32x{group_dim}d"
            yield Entry(names[0], "resnet", arguments, aliases=names[1:], norm=_IMAGENET_NORM, about=about)


def _cifar_resnets() -> Iterator[Entry]:
    small = partial(Entry, image_size=32, num_classes=10, norm=_CIFAR_NORM)
    for size in (8, 14, 20, 32, 44, 56, 110):
        arguments = {"layers": ((size - 2) // 6,) * 3, "bottleneck": False, "cifar": True}
        aliases = () if size == 14 else (f"resnet{size}",)
        about = f"ResNet-{size} for small images, basic blocks"
        yield small(f"cifar_resnet{size}", "resnet", arguments, aliases=aliases, about=about)
    for family, name, title in (("resnet", "cifar_bottleneck", "ResNet"), ("resnext", "cifar_resnext", "ResNeXt")):
        for size in (11, 29, 38, 47, 56, 65):
            arguments = {"layers": ((size - 2) // 9,) * 3, "bottleneck": True, "cifar": True}
            arguments |= {"resnext": True} if family == "resnext" else {}
            aliases = () if (family, size) == ("resnet", 56) else (f"{family}{size}",)
            about = f"{title}-{size} for small images, bottleneck blocks"
            yield small(f"{name}{size}", "resnet", arguments, aliases=aliases, about=about)


def _efficientnets() -> Iterator[Entry]:
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
    for size, (width, depth, dropout, image_size) in scales.items():
        arguments: dict[str, Any] = {"width_coefficient": width, "depth_coefficient": depth, "dropout": dropout}
        arguments |= {kind: True for kind in ("cifar", "lite") if size.startswith(kind)}
        yield Entry(
            f"efficientnet_{size}",
            "efficientnet",
            arguments,
            image_size=image_size,
            num_classes=10 if size == "cifar" else 1000,
            norm=_MOBILE_NORM,
            about=f"EfficientNet-{size.capitalize()}",
        )


def _mobilenets() -> Iterator[Entry]:
    v2: dict[str, Any] = {"aliases": ("mobilenet", "mobilenetv2"), "norm": {"norm_groups": 4}}
    yield Entry("mobilenet_v2", "mobilenet", {"variant": "v2"}, **v2, about="MobileNet v2")
    for size in ("small", "large"):
        v3: dict[str, Any] = {
            "aliases": (f"mobilenetv3_{size}",),
            "norm": _MOBILE_NORM,
            "about": f"MobileNet v3 {size}",
        }
        yield Entry(f"mobilenet_v3_{size}", "mobilenet", {"variant": f"v3_{size}"}, **v3)


def _small_nets() -> Iterator[Entry]:
    yield Entry("squeezenet", "squeezenet", {}, aliases=("squeezenet1_0",), about="SqueezeNet 1.0, without norms")
    small = partial(Entry, image_size=32, num_classes=10)
    norm = {"norm_groups": 16, "norm_epsilon": 1e-12, "norm_momentum": 0.4}
    about = "whitened input and six convolutions, to learn CIFAR-10 in minutes"
    yield small("cifar_fast", "cifar_fast", {}, norm=norm, about=about)
    for name in ("toy_model", "toy_model_bn"):
        about = "two convolutions, for trying things out"
        yield small(name, "toy", {"normalised": name.endswith("bn")}, norm={"norm_groups": 4}, about=about)


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
