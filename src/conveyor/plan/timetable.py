"""The timetable of a pipeline: start and end of every pass of every stage, for given pass times.

Orders of the passes of stage s of S with M micro-batches (F forward, B backward):
    gpipe        F0 .. F(M-1), B0 .. B(M-1)
    1f1b         min(M, S - 1 - s) forwards, then alternating F and B, then the remaining backwards
    sequential   F0 B0 F1 B1 ..: one micro-batch in the whole pipeline at a time
A forward needs the previous stage's forward of the same micro-batch, a backward the next stage's backward (the last
stage its own forward), plus the time to send what crosses. Times may be arrays over replicas: all are simulated at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conveyor.errors import UserError, did_you_mean
from conveyor.monitor.timeline import Span

SCHEDULES = ("gpipe", "1f1b", "sequential")
LIKE = {"interleaved-1f1b": "1f1b", "zero-bubble": "1f1b", "looped-bfs": "gpipe"}
"""Schedules without a timetable of their own here, and the one by which they are timed: it is not faster."""
Pass = tuple[str, int]
Times = npt.NDArray[np.float64]


def order(schedule: str, stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """The passes of one stage: ("F", micro-batch) and ("B", micro-batch)."""
    if schedule not in SCHEDULES:
        raise UserError(f"there is no timetable for schedule {schedule!r}{did_you_mean(schedule, SCHEDULES)}")
    if schedule == "sequential":
        return [(kind, index) for index in range(micro_batches) for kind in "FB"]
    if schedule == "gpipe":
        return [("F", index) for index in range(micro_batches)] + [("B", index) for index in range(micro_batches)]
    ahead = min(micro_batches, stages - 1 - stage)
    passes: list[Pass] = [("F", index) for index in range(ahead)]
    for index in range(micro_batches):
        if index + ahead < micro_batches:
            passes.append(("F", index + ahead))
        passes.append(("B", index))
    return passes


def in_flight(schedule: str, stages: int, micro_batches: int) -> list[int]:
    """For each stage the most micro-batches whose activations it keeps at one time, as follows from `order`."""
    most = {"gpipe": [micro_batches] * stages, "sequential": [1] * stages}
    return most.get(schedule) or [min(micro_batches, stages - stage) for stage in range(stages)]


@dataclass(frozen=True, slots=True)
class Timetable:
    """Start and end of every pass: arrays `[stage, micro-batch]` (and replicas, when the times had them)."""

    forward_start: Times
    forward_end: Times
    backward_start: Times
    backward_end: Times

    @property
    def makespan(self) -> Times:
        """Seconds from the first start to the last end."""
        last: Times = self.backward_end.max(axis=(0, 1))
        return last

    def stage_ends(self) -> Times:
        """When each stage has finished its last backward pass: its gradients may be reduced from then on."""
        ends: Times = self.backward_end.max(axis=1)
        return ends

    def bubble(self) -> float:
        """Share of all stages' time in which they wait, (S T - busy) / (S T); the mean over replicas."""
        busy = (self.forward_end - self.forward_start + self.backward_end - self.backward_start).sum(axis=(0, 1))
        return float(np.mean(1 - busy / (self.forward_start.shape[0] * self.makespan)))

    def spans(self, replica: int = 0) -> list[Span]:
        """The timetable as spans of workers, one worker per stage."""
        pairs = (
            ("forward", self.forward_start, self.forward_end),
            ("backward", self.backward_start, self.backward_end),
        )
        return [
            {
                "worker": stage, "stage": stage, "slot": index, "phase": phase,
                "start": float(np.atleast_1d(start[stage, index])[replica]), "end": float(np.atleast_1d(end[stage, index])[replica]),
            }
            for phase, start, end in pairs
            for stage in range(start.shape[0])
            for index in range(start.shape[1])
        ]  # fmt: skip


def simulate(
    schedule: str,
    forward: Sequence[Times | float],
    backward: Sequence[Times | float],
    micro_batches: int,
    sending: Sequence[Times | float] = (),
) -> Timetable:
    """Run the timetable. `sending[s]` is the time from stage s to s + 1 (and for the gradient on its way back)."""
    stages = len(forward)
    shape = np.broadcast_shapes(*map(np.shape, (*forward, *backward, *sending)))
    delays = list(sending) or [0.0] * (stages - 1)
    starts = {kind: np.zeros((stages, micro_batches, *shape)) for kind in "FB"}
    ends = {kind: np.zeros((stages, micro_batches, *shape)) for kind in "FB"}
    done = {kind: np.zeros((stages, micro_batches), dtype=bool) for kind in "FB"}
    todo = [order(schedule, stage, stages, micro_batches) for stage in range(stages)]
    position, free = [0] * stages, [np.zeros(shape) for _ in range(stages)]
    remaining = sum(len(passes) for passes in todo)
    while remaining:
        before = remaining
        for stage in range(stages):
            while position[stage] < len(todo[stage]):
                kind, index = todo[stage][position[stage]]
                ready = _ready(kind, stage, index, stages, done, ends, delays)
                if ready is None:
                    break
                start = np.maximum(free[stage], ready)
                end = start + (forward[stage] if kind == "F" else backward[stage])
                starts[kind][stage, index], ends[kind][stage, index] = start, end
                done[kind][stage, index] = True
                free[stage] = end
                position[stage] += 1
                remaining -= 1
        assert remaining < before, "the order of passes has a cycle"
    return Timetable(starts["F"], ends["F"], starts["B"], ends["B"])


def _ready(
    kind: str, stage: int, index: int, stages: int, done: dict[str, npt.NDArray[np.bool_]], ends: dict[str, Times],
    delays: Sequence[Times | float],
) -> Times | float | None:  # fmt: skip
    """When the input of a pass has arrived; None while it is not known."""
    if kind == "F" and stage == 0:
        return 0.0
    if kind == "F":
        source, neighbour, delay = "F", stage - 1, delays[stage - 1]
    elif not done["F"][stage, index]:
        return None
    elif stage == stages - 1:
        source, neighbour, delay = "F", stage, 0.0
    else:
        source, neighbour, delay = "B", stage + 1, delays[stage]
    if not done[source][neighbour, index]:
        return None
    arrived: Times = ends[source][neighbour, index] + delay
    return arrived
