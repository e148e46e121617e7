"""Automatic splits: cut a list of units so that the slowest stage is as fast as can be."""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from conveyor.errors import UserError
from conveyor.models.splits import names_of
from conveyor.models.units import Unit
from conveyor.options.units import many

Table = npt.NDArray[np.float64]
MULTIPLY_ADDS_PER_BYTE = 32.0
"""What sending a byte to the next worker costs, in multiply-adds: about 40 G/s computed and 1.2 GB/s sent per core."""

SECONDS_PER_BYTE = 8e-10
"""The same in seconds, beside measured costs: an activation and its gradient are both sent."""

MULTIPLY_ADDS_PER_ACTIVATION_BYTE = 4.0
"""What a norm, an activation or an addition costs per byte it writes: those units have no multiply-adds to count."""


def cost(unit: Unit) -> float:
    """Estimated work of a unit, in multiply-adds."""
    return unit.multiply_adds + MULTIPLY_ADDS_PER_ACTIVATION_BYTE * unit.activation_bytes


def automatic_splits(
    units: Sequence[Unit],
    stages: int,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    closed: Collection[int] = (),
    costs: Sequence[float] | None = None,
) -> list[int]:
    """Indices of the first units of stages 1, 2, ...; `costs` are measured ones (seconds of an image), else estimates.

    A stage also pays for what it sends and receives. Only units with a name that contains one of `include` (if any
    are given) and none of `exclude` may begin a stage, and none of the indices `closed`; a unit in a block also answers to the
    block's names.
    """
    allowed = [unit.index for unit in units[1:] if unit.index not in closed and _may_split(unit, include, exclude)]
    if len(allowed) < stages - 1:
        raise UserError(
            f"{stages} stages need {many(stages - 1, 'place')} to split, and --split-include and --split-exclude leave {len(allowed)}"
            f"{' that begin a block' if closed else ''}: widen the filters or ask for at most {many(len(allowed) + 1, 'stage')}"
        )
    work = list(costs) if costs is not None else [cost(unit) for unit in units]
    per_byte = MULTIPLY_ADDS_PER_BYTE if costs is None else 2 * SECONDS_PER_BYTE
    sending = [per_byte * unit.crossing_bytes for unit in units]
    return balanced(work, sending, allowed, stages)


def _may_split(unit: Unit, include: Sequence[str], exclude: Sequence[str]) -> bool:
    names = (*names_of(unit), *unit.within)
    if unit.inside or any(part in name for part in exclude if part for name in names):
        return False
    return not include or any(part in name for part in include for name in names)


def balanced(work: Sequence[float], sending: Sequence[float], allowed: Sequence[int], stages: int) -> list[int]:
    """Cut points out of `allowed` (ascending) that minimise the largest stage.

    A stage [i, j) costs sum(work[i:j]) + sending[i] + sending[j]; nothing is sent at the two ends.
    """
    sums = np.cumsum([0.0, *work])
    sent = np.array([0.0, *sending[1 : len(work)], 0.0])
    costs = sums[None, :] - sums[:, None] + (sent[:, None] + sent[None, :])
    closed = np.ones(len(sums), dtype=bool)
    closed[[0, *allowed]] = False
    costs[closed] = np.inf
    _, cuts = min_max_cut([costs] * stages)
    return list(cuts[1:-1])


def min_max_cut(costs: Sequence[Table]) -> tuple[float, tuple[int, ...]]:
    """The cut of n units into non-empty stages whose largest cost is least: that cost, and 0, the cuts, n.

    `costs[s][i, j]` is the cost of stage s with units i to j - 1, infinite where it may not be; the result is infinite where
    nothing may be. Exact, by dynamic programming, `O(S n^2)`; of equal choices the one that cuts earlier.
    """
    size = len(costs[0]) - 1
    empty = np.tril(np.ones((size + 1, size + 1), dtype=bool))
    worst = np.full(size + 1, np.inf)
    worst[0] = 0.0
    came_from = []
    for cost in costs:
        reached = np.maximum(worst[:, None], np.where(empty, np.inf, cost))
        came_from.append(np.argmin(reached, axis=0))
        worst = np.min(reached, axis=0)
    return float(worst[size]), traced_back(came_from, size)


def traced_back(came_from: Sequence[npt.NDArray[np.int64]], size: int) -> tuple[int, ...]:
    """0, the cuts, `size`: `came_from[s][j]` is where stage s begins that ends before unit j."""
    cuts = [size]
    for begins in reversed(came_from):
        cuts.append(int(begins[cuts[-1]]))
    return tuple(reversed(cuts))
