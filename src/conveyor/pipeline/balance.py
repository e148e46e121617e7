"""Automatic splits: cut a list of units so that the slowest stage is as fast as can be."""

from collections.abc import Sequence

from conveyor.errors import UserError
from conveyor.models.splits import names_of
from conveyor.models.units import Unit

MULTIPLY_ADDS_PER_BYTE = 32.0
"""What sending a byte to the next worker costs, in multiply-adds: about 40 G/s computed and 1.2 GB/s sent per core."""

SECONDS_PER_BYTE = 8e-10
"""The same in seconds, beside measured costs: an activation and its gradient both travel."""

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
    costs: Sequence[float] | None = None,
) -> list[int]:
    """Indices of the first units of stages 1, 2, ...; `costs` are measured ones (seconds of an image), else estimates.

    A stage also pays for what it sends and receives. Only units with a name that contains one of `include` (if any
    are given) and none of `exclude` may begin a stage; a unit in a block also answers to the block's names.
    """
    allowed = [unit.index for unit in units[1:] if _may_split(unit, include, exclude)]
    if len(allowed) < stages - 1:
        raise UserError(
            f"{stages} stages need {stages - 1} places to split, and only {len(allowed)} names pass --split-include and "
            f"--split-exclude: widen the filters or ask for at most {len(allowed) + 1} stages"
        )
    work = list(costs) if costs is not None else [cost(unit) for unit in units]
    per_byte = MULTIPLY_ADDS_PER_BYTE if costs is None else 2 * SECONDS_PER_BYTE
    sending = [per_byte * unit.crossing_bytes for unit in units]
    return balanced(work, sending, allowed, stages)


def _may_split(unit: Unit, include: Sequence[str], exclude: Sequence[str]) -> bool:
    names = (*names_of(unit), *unit.within)
    if any(part in name for part in exclude if part for name in names):
        return False
    return not include or any(part in name for part in include for name in names)


def balanced(work: Sequence[float], sending: Sequence[float], allowed: Sequence[int], stages: int) -> list[int]:
    """Cut points out of `allowed` (ascending) that minimise the largest stage; exact, by dynamic programming.

    A stage [i, j) costs sum(work[i:j]) + sending[i] + sending[j]; nothing is sent at the two ends.
    """
    size = len(work)
    sums = [0.0]
    for one in work:
        sums.append(sums[-1] + one)

    def stage_cost(first: int, stop: int) -> float:
        ends = (sending[first] if first else 0.0) + (sending[stop] if stop < size else 0.0)
        return sums[stop] - sums[first] + ends

    # best[j]: (largest stage, cuts) for units [0, j) in the number of stages reached so far.
    best: dict[int, tuple[float, list[int]]] = {j: (stage_cost(0, j), []) for j in (*allowed, size)}
    for _ in range(stages - 1):
        following: dict[int, tuple[float, list[int]]] = {}
        for stop in (*allowed, size):
            options = [
                (max(best[first][0], stage_cost(first, stop)), [*best[first][1], first])
                for first in allowed
                if first < stop and first in best
            ]
            if options:
                following[stop] = min(options, key=lambda option: option[0])
        best = following
    return best[size][1]
