"""Checkpoints: complete or absent, checked before they are used, never executed.

`save`, `load`, `newest`, `State` and `BackgroundWriter` are looked up on first use, so that importing this package does
not import torch.
"""

from typing import Any

_HOME = {
    "State": "state",
    "save": "folder",
    "load": "folder",
    "verify": "folder",
    "listing": "store",
    "newest": "store",
    "load_newest": "store",
    "locate": "store",
    "BackgroundWriter": "writer",
    "RunLock": "lock",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
