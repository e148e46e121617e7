"""Where to cut a model into stages: the exact optimum, by dynamic programming.

Minimise the slowest stage, `min over cuts of max over stages of (forward + backward + sending and receiving)`, such
that every stage fits into the memory limit with the micro-batches that its position keeps in flight. Among all cuts
that reach this minimum, the one that sends the fewest bytes. `O(S n^2)` for n units and S stages.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conveyor.pipeline.balance import min_max_cut, traced_back
from conveyor.plan.costs import Model

_Array = npt.NDArray[np.float64]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Split:
    """Stage s holds units `cuts[s]` to `cuts[s + 1] - 1`."""

    cuts: tuple[int, ...]
    slowest: float
    bytes_sent: float


def best_split(
    seconds: _Array, sent: Sequence[float], stages: int, fits: Sequence[_Mask] | None = None
) -> Split | None:
    """The optimum for a table of stage times.

    `seconds[i, j]` is the time of a stage with units i to j - 1; `sent[i]` the bytes that cross a cut before unit i;
    `fits[s][i, j]` whether stage s may be that. None if nothing fits.
    """
    units = seconds.shape[0] - 1
    if stages > units:
        return None
    allowed = [seconds if fits is None else np.where(fits[stage], seconds, np.inf) for stage in range(stages)]
    slowest, _ = min_max_cut(allowed)
    if not np.isfinite(slowest):
        return None
    limit = slowest * (1 + 1e-12)
    after = np.triu(np.ones((units + 1, units + 1), dtype=bool), k=1)
    total = np.full(units + 1, np.inf)
    total[0] = 0.0
    came_from = []
    for stage in range(stages):
        crossing = np.zeros(units + 1) if stage == 0 else np.array([*sent, 0.0])
        cost = np.where(after & (allowed[stage] <= limit), (total + crossing)[:, None], np.inf)
        came_from.append(np.argmin(cost, axis=0))
        total = np.min(cost, axis=0)
    return Split(traced_back(came_from, units), slowest, float(total[units]))


def stage_times(model: Model, batch: int, recompute: str = "none", seconds_per_byte: float = 0.0) -> _Array:
    """`[i, j]`: seconds of one micro-batch in a stage of units i to j - 1, with what it sends and receives."""
    units = len(model)
    passes = np.array([sum(model.seconds(0, stop, batch, recompute)) for stop in range(units + 1)])
    crossing = np.array([model.boundary(position) * batch * seconds_per_byte for position in range(units + 1)])
    crossing[0] = crossing[units] = 0.0
    table: _Array = passes[None, :] - passes[:, None] + crossing[None, :] + crossing[:, None]
    closed = [position for position, unit in enumerate(model.units) if unit.inside]
    table[closed], table[:, closed] = np.inf, np.inf
    return table


def split_model(
    model: Model,
    stages: int,
    batch: int,
    *,
    recompute: str = "none",
    in_flight: Sequence[int] | None = None,
    memory: float | None = None,
    copies_of_weights: float = 3.0,
    seconds_per_byte: float = 0.0,
) -> Split | None:
    """The best cut of `model`; `in_flight[s]` is the number of micro-batches whose activations stage s keeps."""
    fits: list[_Mask] | None = None
    if memory is not None:
        weights, kept, moment = model.memory_tables(recompute)
        held = list(in_flight) if in_flight is not None else [1] * stages
        fits = [weights * copies_of_weights + batch * (kept * many + moment) <= memory for many in held]
    sent = [model.boundary(position) * batch for position in range(len(model))]
    return best_split(stage_times(model, batch, recompute, seconds_per_byte), sent, stages, fits)
