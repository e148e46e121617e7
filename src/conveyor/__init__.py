"""Conveyor: train, validate, benchmark, export and serve convolutional image classifiers.

Importing the package imports nothing heavy: `conveyor.train`, `conveyor.validate` and `conveyor.load` bring
PyTorch in when they are first used.

    train     train a network; returns a `Run`
    Run       the folder, options, metrics, validation, model, best, report() and plot() of a run; Run.open(folder)
    validate  the accuracy of a run, a checkpoint or a module
    load      a trained network; `.predict(photographs)` names what is on them
"""

from typing import TYPE_CHECKING, Any

from conveyor.errors import UserError
from conveyor.version import __version__

if TYPE_CHECKING:
    from conveyor.api import Run, load, train, validate

__all__ = ["Run", "UserError", "__version__", "load", "train", "validate"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in ("Run", "train", "validate", "load"):
        from conveyor import api

        return getattr(api, name)
    raise AttributeError(f"module 'conveyor' has no attribute {name!r}")
