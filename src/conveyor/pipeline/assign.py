"""Which worker of a lane runs which stages. Pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass

from conveyor.errors import UserError
from conveyor.options.units import many

LOOPED = ("interleaved-1f1b", "looped-bfs", "zero-bubble")
"""Schedules in which a worker may hold several stages that do not follow each other."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive stages `first..stop-1` that one worker runs as one."""

    worker: int
    first: int
    stop: int

    @property
    def stages(self) -> range:
        """The numbers of the stages."""
        return range(self.first, self.stop)


def assign(num_stages: int, depth: int, schedule: str = "gpipe", mapping: Sequence[int] = ()) -> list[Part]:
    """Assign the stages of a model to the `depth` workers of a lane, in the order of the forward pass.

    Without a mapping each worker gets neighbouring stages (as even as can be), or, for the looped schedules, every
    depth-th part. A mapping names a worker for each stage; when it names more workers than there are, neighbouring
    ones are merged. Neighbouring stages of one worker become one part: nothing is sent between them.
    """
    if not 1 <= depth <= num_stages:
        raise UserError(f"depth {depth} for {many(num_stages, 'stage')}: choose 1 to {num_stages}, or more stages")
    if mapping:
        named = max(mapping) + 1
        if named < depth:
            raise UserError(f"--device-mapping uses {many(named, 'worker')}, but the layout has a depth of {depth}")
        workers = [worker * depth // named for worker in mapping]
    elif schedule in LOOPED:
        rounds = num_stages // depth
        return _parts_of_groups(num_stages, rounds * depth, depth)
    else:
        workers = [stage * depth // num_stages for stage in range(num_stages)]
    return merge(workers)


def merge(workers: Sequence[int]) -> list[Part]:
    """Stage -> worker as parts: `[0, 0, 1, 0]` is stages 0-1 on worker 0, 2 on worker 1, 3 on worker 0."""
    parts: list[Part] = []
    for stage, worker in enumerate(workers):
        if parts and parts[-1].worker == worker:
            parts[-1] = Part(worker, parts[-1].first, stage + 1)
        else:
            parts.append(Part(worker, stage, stage + 1))
    return parts


def _parts_of_groups(num_stages: int, groups: int, depth: int) -> list[Part]:
    """`groups` even runs of stages, dealt round robin to the workers."""
    bounds = [group * num_stages // groups for group in range(groups + 1)]
    parts = [Part(group % depth, bounds[group], bounds[group + 1]) for group in range(groups)]
    return [Part(0, 0, num_stages)] if depth == 1 else parts


def is_looped(parts: Sequence[Part], depth: int) -> bool:
    """Whether part i lies on worker i mod depth, with as many parts on each: what the library's schedules expect."""
    return len(parts) % depth == 0 and all(part.worker == index % depth for index, part in enumerate(parts))


def steps(num_micro_batches: int, depth: int, schedule: str) -> list[int]:
    """How the micro-batches of an update are divided among calls of the schedule.

    sequential runs one at a time. The interleaved schedules need a multiple of the depth, or fewer than that: the rest
    goes into a call of its own.
    """
    if schedule == "sequential":
        return [1] * num_micro_batches
    if schedule in ("interleaved-1f1b", "zero-bubble"):
        rest = num_micro_batches % depth
        return [count for count in (num_micro_batches - rest, rest) if count]
    return [num_micro_batches] if num_micro_batches else []
