"""Conveyor: train, validate, benchmark, export and serve convolutional image classifiers.

Importing the package imports nothing heavy: `conveyor.train`, `conveyor.validate` and `conveyor.load` bring
PyTorch in when they are first used.
"""

from typing import TYPE_CHECKING, Any

from conveyor.errors import UserError
from conveyor.version import __version__

if TYPE_CHECKING:
    from conveyor.api import load, train, validate

__all__ = ["UserError", "__version__", "load", "train", "validate"]


def __getattr__(name: str) -> Any:
    if name in ("train", "validate", "load"):
        from conveyor import api

        return getattr(api, name)
    raise AttributeError(f"module 'conveyor' has no attribute {name!r}")
