"""Models of timm and torchvision: `timm/NAME` and `torchvision/NAME`, where that package is installed.

A run folder holds such a name and weights. The name means code of the installed package and of nothing else, so it is
imported unasked. No torch here until a package is needed.
"""

import re
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from conveyor.errors import UserError, did_you_mean, first_line
from conveyor.models.user_module import Factory

if TYPE_CHECKING:
    from torch import nn

PACKAGES = ("timm", "torchvision")
COLOURS = 3
"""Channels that every model of torchvision takes."""
_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")


def is_library(model: str | None) -> bool:
    """Whether `model` is of the form `timm/NAME` or `torchvision/NAME`."""
    return model is not None and model.partition("/")[0] in PACKAGES and "/" in model


def has(package: str, name: str) -> bool:
    """Whether `package` is installed and has a model called `name`."""
    return find_spec(package) is not None and name.partition(".")[0] in _names(_imported(package))


def factory(model: str) -> Factory:
    """What makes the model: `(num_classes, in_channels) -> nn.Module` with fresh weights."""
    package, name = _found(model)

    def make(num_classes: int, in_channels: int) -> "nn.Module":
        if package == "timm":
            made = _imported(package).create_model(name, num_classes=num_classes, in_chans=in_channels)
            whole = tuple(_imported("timm.layers").get_notrace_modules())
            for module in made.modules():
                if isinstance(module, whole):
                    module.is_unit = True  # its code looks at shapes: see `graph.trace_graph`
            return made
        if in_channels != COLOURS:
            raise UserError(f"torchvision's models take images in colour: leave out --in-channels {in_channels}")
        # GoogLeNet and Inception would return a tuple in training.
        more = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
        return _imported(package).get_model(name.partition(".")[0], weights=None, num_classes=num_classes, **more)

    return make


def described(model: str) -> dict[str, Any]:
    """How the makers validated, under the names of timm's `pretrained_cfg`; empty where no weights were published."""
    package, name = _found(model)
    if package == "timm":
        stated = _imported("timm.models").get_pretrained_cfg(name)
        return {} if stated is None else dict(stated.to_dict())
    weights = _weights(name)
    if weights is None:
        return {}
    used = weights.transforms()
    size, resize = used.crop_size[0], used.resize_size[0]
    return {
        "input_size": (3, size, size),
        "crop_pct": size / (resize + 0.5),  # size / crop_pct is rounded down
        "interpolation": used.interpolation.value,
        "mean": used.mean,
        "std": used.std,
    }


def published(model: str) -> str:
    """Where the weights are: `timm/NAME.TAG` on the hub, or the address of torchvision's file."""
    package, name = _found(model)
    if package == "timm":
        stated = _imported("timm.models").get_pretrained_cfg(name)
        where = stated and stated.hf_hub_id
    else:
        stated = _weights(name)
        where = stated and stated.url
    if not where:
        raise UserError(f"{package} has published no weights of {name}: train it from nothing with --model {model}")
    return str(where)


def _weights(name: str) -> Any:
    """One of torchvision's published weights: `NAME` or `NAME.IMAGENET1K_V1`; None where there are none."""
    bare, _, tag = name.partition(".")
    choices = _imported("torchvision").get_model_weights(bare)
    if tag and tag not in choices.__members__:
        raise UserError(f"torchvision has no weights {tag} of {bare}: it has {', '.join(choices.__members__)}")
    return choices[tag] if tag else next(iter([choices.DEFAULT] if len(choices) else []), None)


def _found(model: str) -> tuple[str, str]:
    """(package, name), or one sentence about what is missing."""
    package, _, name = model.partition("/")
    if find_spec(package) is None:
        raise UserError(f"the model {model} is {package}'s, which is not installed: pip install {package}")
    known = _names(_imported(package))
    bare = name.partition(".")[0]
    if not _NAME.fullmatch(name) or bare not in known:
        raise UserError(f"{package} has no model {name!r}{did_you_mean(bare, known)}")
    if package == "timm" and bare != name and name not in (tagged := _imported(package).list_pretrained(f"{bare}.*")):
        raise UserError(f"timm has no weights {name}: it has {', '.join(tagged) or 'none of that model'}")
    return package, name


def _names(package: Any) -> list[str]:
    return list(package.list_models(module=package) if package.__name__ != "timm" else package.list_models())


def _imported(package: str) -> Any:
    try:
        return import_module("torchvision.models" if package == "torchvision" else package)
    except Exception as error:
        raise UserError(
            f"{package} is installed and cannot be imported ({first_line(error)}): install one that fits this torch"
        ) from error
