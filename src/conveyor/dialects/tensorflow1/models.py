"""TensorFlow 1: model families, their defaults per data set, and the names of their split points."""

import dataclasses
import math
import re

from conveyor.errors import UserError, did_you_mean
from conveyor.models import catalogue

FAMILIES = ("resnet", "resnext", "efficientnet", "squeezenet")


@dataclasses.dataclass(frozen=True, slots=True)
class Defaults:
    """What a family takes when an option is not given; pairs are (ImageNet, CIFAR)."""

    size: tuple[str, str]
    micro_batch: tuple[int, int]
    epochs: tuple[int, int]
    weight_decay: tuple[float, float]
    exponents: dict[str, float]
    """Learning-rate exponent by optimiser for ImageNet; CIFAR is always -6."""
    groups: tuple[int, int]
    label_smoothing: tuple[float, float] = (0.0, 0.0)


_RESNET_EXPONENTS = {"SGD": -8.0, "momentum": -11.0, "RMSprop": -11.0, "LARS": -11.0}
_RESNET = Defaults(("18", "20"), (4, 32), (100, 160), (1e-4, 1e-6), _RESNET_EXPONENTS, (32, 16))
DEFAULTS = {
    "resnet": _RESNET,
    "resnext": dataclasses.replace(_RESNET, size=("14", "11"), micro_batch=(1, 8)),
    "squeezenet": dataclasses.replace(_RESNET, size=("", "")),
    "efficientnet": Defaults(
        ("B0", "B0"),
        (4, 8),
        (350, 300),
        (1e-5, 1e-6),
        {"SGD": -7.0, "momentum": -10.0, "RMSprop": -14.0, "LARS": -10.0},
        (4, 4),
        (0.1, 0.0),
    ),
}
CIFAR_EXPONENT = -6.0


def model_name(family: str, size: str, cifar: bool) -> str:
    """Our name of a model; a size that does not exist lists those that do."""
    if family == "squeezenet":
        return "squeezenet"
    if family == "efficientnet":
        text = size.upper()
        text = f"B{text}" if text.isdecimal() else text
        sizes = [f"B{number}" for number in range(8)] + ["CIFAR"]
        if text not in sizes:
            raise UserError(f"--model-size {size} does not exist for efficientnet{did_you_mean(text, sizes)}")
        return f"efficientnet_{text.lower()}"
    if not size.isdecimal():
        raise UserError(f"--model-size is {size!r}, but should be a whole number for {family}")
    candidates = _candidates(family, cifar)
    if int(size) not in candidates:
        known = ", ".join(str(number) for number in sorted(candidates))
        data = "CIFAR" if cifar else "ImageNet"
        raise UserError(f"--model-size {size} does not exist for {family} on {data}: choose one of {known}")
    return candidates[int(size)]


def _candidates(family: str, cifar: bool) -> dict[int, str]:
    if family == "resnext":
        return (
            {size: f"cifar_resnext{size}" for size in (11, 29, 38, 47, 56, 65)}
            if cifar
            else {size: f"resnext{size}" for size in (14, 26, 50, 101, 152)}
        )
    if not cifar:
        return {size: f"resnet{size}" for size in (10, 18, 34, 14, 26, 50, 101, 152)}
    basic = {size: f"cifar_resnet{size}" for size in (8, 14, 20, 32, 44, 56, 110)}
    # Size 56 stands in both series of the original; the bottleneck one overrides.
    return basic | {size: f"cifar_bottleneck{size}" for size in (11, 29, 38, 47, 56, 65)}


def split_names(name: str) -> list[str]:
    """All names at which the original can cut the model, in order; only the relu names for ResNet and ResNeXt."""
    entry = catalogue.entry(name)
    if entry.family in ("resnet", "resnext"):
        layers = entry.arguments["layers"]
        return [f"b{stage}/{block}/relu" for stage, count in enumerate(layers, 1) for block in range(count)]
    if entry.family == "efficientnet":
        return _efficientnet_names(float(entry.arguments["depth_coefficient"]))
    return []


def _efficientnet_names(depth: float) -> list[str]:
    """`block0`, then per block its parts: blocks with an identity skip are one unit, others are cut inside."""
    names = ["block0"]
    for number, repeat in enumerate((1, 2, 2, 3, 3, 4, 1), 1):
        for index in range(math.ceil(depth * repeat)):
            block = f"block{number}{chr(ord('a') + index)}"
            identity = index > 0
            parts = () if identity else ("/b", "/SE", "/c")
            names += [] if number == 1 and not identity else [block]
            names += [block + part for part in parts]
    return [*names, "Top"]


def trained(name: str, words: list[str]) -> list[str]:
    """`--train-only` for variables whose names contain one of `words`; variables are known here by their layer."""
    scopes = layer_scopes(name)
    found: dict[str, None] = {}
    for word in words:
        layers = [layer for scope, ours in scopes.items() if word in f"{scope}/" for layer in ours]
        if not layers:
            raise UserError(f"--variable-filter {word} fits no layer of {name}: there are {' '.join(scopes)}")
        found |= dict.fromkeys(layers)
    return list(found)


def layer_scopes(name: str) -> dict[str, tuple[str, ...]]:
    """What the original's variables begin with, layer by layer, and how our names of the same parameters begin."""
    entry = catalogue.entry(name)
    if entry.family in ("resnet", "resnext"):
        blocks = [(stage, block) for stage, count in enumerate(entry.arguments["layers"], 1) for block in range(count)]
        inner = {f"b{stage}/{block}": (f"^layer{stage}.{block}.",) for stage, block in blocks}
        return {"b0": ("^conv1.", "^bn1."), **inner, "fc1": ("^fc.",)}
    if entry.family == "efficientnet":
        named = [one for one in split_names(name) if "/" not in one and one not in ("block0", "Top")]
        known = dict.fromkeys(["block1a", *named])  # block1a is no split point of its own
        inner = {one: (f"^blocks.{int(one[5]) - 1}.{ord(one[6]) - ord('a')}.",) for one in known}
        return {"block0": ("^conv_stem.", "^bn1."), **inner, "Top": ("^conv_head.", "^bn2.", "^classifier.")}
    places = {2: 3, 3: 4, 4: 5, 5: 7, 6: 8, 7: 9, 8: 10, 9: 12}
    fires = {f"fire{number}": (f"^features.{place}.",) for number, place in places.items()}
    return {"conv1": ("^features.0.",), **fires, "conv10": ("^classifier.1.",)}


def check_splits(name: str, splits: list[str]) -> list[str]:
    """Refuse names that are not split points; the later renaming `stage1/unit2/relu` is `b1/1/relu`."""
    known = split_names(name)
    checked = [_older(split) for split in splits]
    for split in checked:
        base = split.removesuffix("/relu")
        if known and split not in known and f"{base}/relu" not in known and split not in ("b0", "reduce_mean", "fc1"):
            raise UserError(
                f"--pipeline-splits: {split!r} is no split point of {name}{did_you_mean(split, known)}; "
                f"there are {' '.join(known)}"
            )
    order = {each: index for index, each in enumerate(known)}
    places = [order[split] for split in checked if split in order]
    if places != sorted(set(places)):
        raise UserError(f"--pipeline-splits {' '.join(splits)}: the names must be different and in the model's order")
    return checked


def _older(split: str) -> str:
    match = re.fullmatch(r"stage(\d+)/unit(\d+)(/relu)?", split)
    return f"b{match[1]}/{int(match[2]) - 1}{match[3] or ''}" if match else split
