"""The origin of a weights file, and its makers' settings that no tensor holds. No torch unless a file needs it.

Recognised by the tensors' names (torchvision, efficientnet_pytorch), by `config.json` beside the file (timm on the
Hugging Face hub) and by the name of the file or its folder (timm). Norm epsilon and padding belong to the network:
options that contradict them are refused. Size, crop, interpolation, mean and deviation are how its makers validated:
options win.
"""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conveyor.errors import UserError
from conveyor.models import catalogue, library_models
from conveyor.options import Options
from conveyor.options.units import normalization

CONFIG = "config.json"
LARGEST_CONFIG = 1 << 20
_OWN_MARKS = ("manifest", "export.json")
"""Files that stand beside weights written by this program."""
_TIMM = re.compile(
    r"(?P<tf>tf_)?(?P<arch>efficientnet_(?:b[0-7]|lite[0-4])|mobilenetv3_(?:small|large)_100|mobilenetv2_100"
    r"|resnet(?:10|14|18|26|34|50|101|152)|resnext(?:50|101)_32x[48]d)(?=$|[._-])"
)
_VARIANTS = re.compile(r"_(pruned|minimal|clip|gn|gap)")
_OURS = {"mobilenetv3_small_100": "mobilenet_v3_small", "mobilenetv3_large_100": "mobilenet_v3_large", "mobilenetv2_100": "mobilenet_v2"}  # fmt: skip
_EPSILON_MATTERS = ("efficientnet", "mobilenet_v3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The maker of the weights and their settings; None where unknown."""

    maker: str
    model: str | None = None
    """Our name of the network."""
    epsilon: float | None = None
    padding: str | None = None
    validation: dict[str, Any] = field(default_factory=dict)
    """Options by name: image_size, validation_resize, interpolation, normalization."""
    notes: tuple[str, ...] = ()
    doubt: str = ""
    """Options to add by hand, when the origin is unknown and two libraries compute this model differently."""


def completed(options: Options, *, photographs: bool) -> tuple[Options, tuple[str, ...]]:
    """`options` with what the source of their weights uses, and one line that says so.

    How the makers validated is taken over for `photographs` only: other images have a size and statistics of their own.
    """
    path = _weights(options)
    changes: dict[str, Any] = {}
    asked = options.model
    if asked.model is not None and library_models.is_library(asked.model):
        source: Source | None = _of_library(asked.model, path)
    else:
        source = None if path is None else identify(path, asked.model)
    if source is None:
        return options, ()
    if source.model is not None:
        if asked.model is None:
            changes["model"] = source.model
        elif catalogue.canonical(asked.model) not in (source.model, None):
            raise UserError(
                f"{path} is {source.maker}, but --model {asked.model} was asked for: use --model {source.model}"
            )
    for name, value in (("norm_epsilon", source.epsilon), ("padding", source.padding)):
        given = getattr(asked, name)
        if value is not None and given is not None and given != value:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{path} is {source.maker}, made with {flag} {value}: {flag} {given} contradicts it")
        if value is not None and given is None:
            changes[name] = value
    if photographs:
        changes |= {
            name: value
            for name, value in source.validation.items()
            if getattr(asked if name == "image_size" else options.data, name) is None
        }
        if asked.image_size is not None and "validation_resize" in changes:  # the same share at another size
            changes["validation_resize"] = (
                asked.image_size * changes["validation_resize"] // source.validation["image_size"]
            )
    words = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changes.items())
    subject = asked.model if path is None else path.name
    said: tuple[str, ...] = (f"{subject} is {source.maker}: {words}",) if words else ()
    if source.doubt and asked.norm_epsilon is None and asked.padding is None:
        said += (source.doubt,)
    return (options.replace(**changes) if changes else options), (*said, *source.notes)


def identify(path: Path, model: str | None) -> Source | None:
    """The source of the weights at `path`, as far as it matters to `model`; None where unknown."""
    tensors = _tensor_names(path) if _matters(model) else []
    if any(name.startswith("features.") for name in tensors):
        small = (catalogue.canonical(model or "") or "").endswith(("b0", "b1", "b2", "b3", "b4"))
        return Source(maker="torchvision's", epsilon=1e-5 if small else 1e-3, padding="symmetric")
    if any(name.startswith("_blocks.") for name in tensors):
        return Source(maker="of efficientnet_pytorch's names", epsilon=1e-3, padding="same")
    config = _config(path)
    stated = str(config.get("architecture", "")) if config else ""
    named = next((text for text in (path.stem, path.resolve().parent.name) if _TIMM.match(text)), "")
    architecture, by_name = _TIMM.match(stated or named), _TIMM.match(path.stem)
    if stated and architecture and by_name and architecture[0] != by_name[0]:
        raise UserError(
            f"{path.parent / CONFIG} says {stated}, the weights are called {path.name}: one of them is wrong"
        )
    if architecture is None or _VARIANTS.match((stated or named)[architecture.end() :]):
        return _unknown(path, tensors, config)
    name = architecture["arch"]
    ours = catalogue.canonical(_OURS.get(name, name))
    validation, notes = _validation(config or {})
    epsilon, padding = None, None
    if ours is not None and ours.startswith(_EPSILON_MATTERS):
        epsilon, padding = (1e-3, "same") if architecture["tf"] else (1e-5, "symmetric")
    if not config and ours is not None and ours.startswith("efficientnet_lite") and not architecture["tf"]:
        validation["normalization"] = "imagenet"  # only TensorFlow's own were trained with centred pixels
    maker = f"timm's {architecture[0]}"
    return Source(maker=maker, model=ours, epsilon=epsilon, padding=padding, validation=validation, notes=notes)


def _of_library(model: str, path: Path | None) -> Source:
    """How a model of a library is validated: by the description beside its weights, else as its makers did."""
    stated = (_config(path) if path is not None else None) or {"pretrained_cfg": library_models.described(model)}
    validation, notes = _validation(stated)
    package, _, name = model.partition("/")
    return Source(maker=f"{package}'s {name}", validation=validation, notes=notes)


def timm_model(name: str) -> str | None:
    """Our name of the network that timm calls `name`."""
    found = _TIMM.match(name)
    if found is None or _VARIANTS.match(name[found.end() :]):
        return None
    return catalogue.canonical(_OURS.get(found["arch"], found["arch"]))


def _unknown(path: Path, tensors: list[str], config: dict[str, Any] | None) -> Source | None:
    validation, notes = _validation(config or {})
    doubt = ""
    if "conv_stem.weight" in tensors and not any((path.parent / mark).exists() for mark in _OWN_MARKS):
        doubt = (
            f"nothing beside {path.name} says whose weights it holds: those of timm's efficientnet_* and mobilenetv3_* need "
            "--norm-epsilon 1e-5 --padding symmetric, those of its tf_* need --norm-epsilon 1e-3 --padding same"
        )
    if not validation and not notes and not doubt:
        return None
    return Source(maker=f"described by {CONFIG}", validation=validation, notes=notes, doubt=doubt)


def _weights(options: Options) -> Path | None:
    """The file that the options start or validate with; None for a run or checkpoint, which hold their own."""
    if options.run.checkpoint_path is not None:
        path = Path(options.run.checkpoint_path)
        return path if path.is_file() and not (path.parent / "manifest").exists() else None
    if options.model.weights is None or not Path(options.model.weights).is_file():
        return None
    return Path(options.model.weights)


def _matters(model: str | None) -> bool:
    """Whether libraries disagree about the network's epsilon or padding; an unnamed one may be of that kind."""
    return model is None or (catalogue.canonical(model) or "").startswith(_EPSILON_MATTERS)


def _tensor_names(path: Path) -> list[str]:
    """The names in a weights file; torch is needed for one that is no safetensors file."""
    from conveyor.models.weights import read_state

    return [name.removeprefix("module.") for name in read_state(path, outline=True)]


def _config(path: Path) -> dict[str, Any] | None:
    """`config.json` beside the weights, when it describes a network and not something else."""
    file = path.parent / CONFIG
    if not file.is_file():
        return None
    try:
        if file.stat().st_size > LARGEST_CONFIG:
            raise ValueError("it is too large")
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read ({error}): mend it, or move it away from the weights") from None
    return (
        document
        if isinstance(document, dict) and ("architecture" in document or "pretrained_cfg" in document)
        else None
    )


def _validation(config: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options that `pretrained_cfg` (in older files the document itself) means, and notes on what is ignored."""
    stated = config.get("pretrained_cfg") or config
    found: dict[str, Any] = {}
    notes = []
    try:
        if stated.get("input_size"):
            size = int(stated["input_size"][-1])
            if not 1 <= size <= 1 << 14:
                raise ValueError(f"input_size {stated['input_size']}")
            found["image_size"] = size
            if stated.get("crop_pct"):
                found["validation_resize"] = max(size, math.floor(size / float(stated["crop_pct"])))
        if stated.get("interpolation") in ("bilinear", "bicubic"):
            found["interpolation"] = stated["interpolation"]
        if stated.get("mean") and stated.get("std"):
            found["normalization"] = _named(stated["mean"], stated["std"])
        if stated.get("crop_mode", "center") != "center":
            notes.append(f"{CONFIG} says crop_mode {stated['crop_mode']}: the central crop is taken instead")
    except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise UserError(f"{CONFIG} beside the weights is damaged ({error}): mend it, or move it away") from None
    return found, tuple(notes)


def _named(mean: Any, std: Any) -> str:
    """The option for a mean and a deviation of x / 255: a name where one says the same."""
    means, deviations = tuple(map(float, mean)), tuple(map(float, std))
    if (means, deviations) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)):
        return "imagenet"
    if (means, deviations) == ((0.0,) * 3, (1.0,) * 3):
        return "unit"
    text = "/".join(",".join(map(repr, numbers)) for numbers in (means, deviations))
    normalization(text)
    return text
