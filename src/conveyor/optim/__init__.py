"""Update rules, learning-rate schedules and averages of weights.

`make_optimizer` is imported on first use, so that `conveyor.optim.schedule` needs no torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conveyor.optim.optimizer import Optimizer, make_optimizer

__all__ = ["Optimizer", "make_optimizer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from conveyor.optim import optimizer

    return getattr(optimizer, name)
