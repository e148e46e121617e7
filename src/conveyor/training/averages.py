"""Averages of saved checkpoints: the mean of the last ones, or exponential over all, in float64, in the original types."""

import math
from collections.abc import Sequence
from pathlib import Path

from conveyor.checkpoint import folder as one
from conveyor.checkpoint import store
from conveyor.checkpoint.state import State
from conveyor.errors import UserError
from conveyor.optim import average
from conveyor.training.checkpoints import readable
from conveyor.training.spec import RunSpec


def average_checkpoints(paths: Sequence[Path], *, decay: float | None = None) -> State:
    """The average of the checkpoints' weights, oldest first; `decay` makes it exponential. Only weights are kept."""
    running = average.Mean() if decay is None else average.Exponential(decay)
    last: State | None = None
    names = []
    for path, state in readable(paths):
        running.add(state.model)
        names.append(path.name)
        last = state
    if last is None:
        raise UserError("there is no complete checkpoint to average")
    return State(
        model=running.result(),
        progress={**last.progress, "averaged": names, "decay": decay},
        options=last.options,
    )


def average_after_training(folder: Path, spec: RunSpec) -> list[Path]:
    """The averages that `--average-last` and `--average-decay` ask for, saved beside the checkpoints."""
    written = []
    numbered = [path for path in store.listing(folder) if path.name.isdigit()]
    for epochs in spec.options.events.average_last:
        newest = int(numbered[-1].name) if numbered else 0
        first = newest - epochs * spec.updates_per_epoch
        chosen = [path for path in numbered if int(path.name) > first]
        written.append(save_average(folder, f"last-{epochs}", average_checkpoints(chosen)))
    for decay in spec.options.events.average_decay:
        if not math.isfinite(decay) or not 0 <= decay < 1:
            raise UserError(f"--average-decay {decay:g} is not between 0 and 1")
        written.append(save_average(folder, f"exponential-{decay:g}", average_checkpoints(numbered, decay=decay)))
    return written


def save_average(folder: Path, name: str, state: State) -> Path:
    """Save an average as `checkpoints/average-NAME` of a run."""
    return one.save(folder / store.CHECKPOINTS / f"{store.AVERAGED}{name}", state)
