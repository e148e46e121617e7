"""Build a model by name: a shipped one, a library's (`library_models.py`), or a user's own (`user_module.py`)."""

import dataclasses
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from torch import nn

from conveyor.errors import UserError, did_you_mean
from conveyor.models import catalogue, library_models, user_module
from conveyor.models.layers.adopt import adopt_norms, adopt_random_layers, check_adopted
from conveyor.models.layers.layers import Block
from conveyor.models.layers.norms import BatchNorm, NormChoice
from conveyor.models.layers.stochastic import name_layers
from conveyor.models.user_module import Factory
from conveyor.options.model import ModelOptions

# Options that steer the run or the loading of weights, not the shape of the network.
_NOT_OF_THE_NETWORK = {
    "model",
    "weights",
    "replace_head",
    "pretrained",
    "weights_dir",
    "bn_span",
}

_LISTS = (nn.Sequential, nn.ModuleList)
_NORM_OPTIONS = {
    "norm": "kind",
    "norm_groups": "groups",
    "norm_group_channels": "group_channels",
    "norm_epsilon": "epsilon",
    "norm_momentum": "momentum",
    "stable_norm": "stable",
    "proxy_epsilon": "proxy_epsilon",
}


def build(
    name: str, num_classes: int = 1000, in_channels: int = 3, image_size: int | None = None, **options: Any
) -> nn.Module:
    """The model `name` with fresh weights from torch's global generator.

    `image_size` matters to the few models whose layers depend on it (the toy models); the others take any size.

    An option that the model's family does not have is an error, so that none is ignored silently; one that is None
    takes the family's own value.
    """
    given = {key: value for key, value in options.items() if value is not None}
    factory, defaults, norm_defaults = _find(name)
    norm_given = {key: given.pop(key) for key in list(given) if key in _NORM_OPTIONS}
    parameters = inspect.signature(factory).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    known = [key for key in parameters if key not in ("num_classes", "in_channels", "image_size", "norm")]
    for key in given:
        if key not in known and not open_ended:
            # Its other parameters are fixed by the model's name and are no options.
            choices = [field.name for field in dataclasses.fields(ModelOptions) if field.name in known]
            raise UserError(f"{name} has no option {key!r}{did_you_mean(key, choices)}.")
    arguments = {**defaults, **given}
    momentum = None if "norm" in parameters else norm_given.pop("norm_momentum", None)
    if "norm" in parameters:
        arguments["norm"] = _norm_choice(norm_defaults, norm_given)
    elif any(norm_given.values()):
        raise UserError(f"{name} lets no norm be chosen: leave out {', '.join(sorted(norm_given))}.")
    if image_size is not None and "image_size" in parameters:
        arguments["image_size"] = image_size
    model = adopt_random_layers(adopt_norms(factory(num_classes=num_classes, in_channels=in_channels, **arguments)))
    if library_models.is_library(name):
        check_adopted(model, name)
    if momentum is not None:  # the only choice of norms that a network of others leaves
        for layer in model.modules():
            if isinstance(layer, BatchNorm):
                layer.momentum = momentum
    name_layers(model)
    return model


def build_from(options: ModelOptions, **more: Any) -> nn.Module:
    """The model that the options' model section describes; `more` adds or overrides (num_classes, in_channels...)."""
    section = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    given = {key: value for key, value in section.items() if key not in _NOT_OF_THE_NETWORK and value is not None}
    given.update({key: value for key, value in more.items() if key not in ("name", "model")})
    name = more.get("name") or more.get("model") or section["model"]
    if name is None:
        raise UserError("no model is named: give --model NAME (`conveyor models` lists them).")
    return build(name, **given)


def blocks(model: nn.Module) -> list[str]:
    """The names of the residual blocks, in order: the natural places to recompute.

    Of a model that was written elsewhere: the outermost modules with layers that stand in a list, or beside another of
    their class.
    """
    found = [name for name, module in model.named_modules() if isinstance(module, Block)]
    return found or list(_repeated(model, ""))


def _repeated(parent: nn.Module, path: str) -> Iterator[str]:
    children = list(parent.named_children())
    kinds = Counter(type(child) for _, child in children)
    for name, child in children:
        if isinstance(child, _LISTS) or not (isinstance(parent, _LISTS) or kinds[type(child)] > 1):
            yield from _repeated(child, f"{path}{name}.")
        elif next(child.children(), None) is not None and not getattr(child, "is_unit", False):
            yield path + name


def _find(name: str) -> tuple[Factory, Mapping[str, Any], Mapping[str, Any]]:
    """(factory, its default arguments, norm defaults) of a library's, an imported, a registered or a shipped model."""
    if library_models.is_library(name):
        return library_models.factory(name), {}, {}
    if ":" in name:
        return user_module.imported(name), {}, {}
    mine = user_module.registered()
    if name in mine:
        return mine[name], {}, {}
    if catalogue.canonical(name) is None and mine:
        hint = did_you_mean(name, [*catalogue.known(), *mine])
        raise UserError(f"there is no model {name!r}{hint}: `conveyor models` lists them all.")
    entry = catalogue.entry(name)
    family = import_module(f"conveyor.models.{entry.family}")
    return family.make, entry.arguments, entry.norm


def _norm_choice(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> NormChoice:
    fields = {_NORM_OPTIONS[key]: value for key, value in {**defaults, **given}.items()}
    if "norm_groups" in given and "norm_group_channels" in given:
        raise UserError("norm_groups and norm_group_channels say the same thing twice: give one of them.")
    kind = fields.get("kind", "batch")
    if kind not in ("batch", "group", "proxy", "none"):
        raise UserError(f"there is no norm {kind!r}: choose batch, group, proxy or none.")
    return NormChoice(**fields)
