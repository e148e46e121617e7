"""The networks: plain modules, their norms, their names. `models.build("resnet50")` makes one.

Names are loaded on first use, so that importing a torch-free module of this package stays torch-free.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "build": "conveyor.models.registry",
    "build_from": "conveyor.models.registry",
    "register": "conveyor.models.user_module",
    "blocks": "conveyor.models.registry",
}

__all__ = ["blocks", "build", "build_from", "register"]


def __getattr__(name: str) -> Any:
    if name == "norms":
        return import_module("conveyor.models.layers.norms")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
