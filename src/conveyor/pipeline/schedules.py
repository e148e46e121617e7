"""The library's schedules by our names, and one of our own for stages that lie on any worker."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
)
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from conveyor.pipeline.assign import Part, is_looped

LoopedSchedules = {
    "interleaved-1f1b": ScheduleInterleaved1F1B,
    "looped-bfs": ScheduleLoopedBFS,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}


class ScheduleMapped(_PipelineScheduleRuntime):
    """All forwards, then all backwards, with part i on the worker `workers[i]`: any worker, any number of times."""

    def __init__(
        self, stages: list[Any], workers: Sequence[int], n_microbatches: int, loss_fn: Any, scale_grads: bool
    ) -> None:
        super().__init__(stages=stages, n_microbatches=n_microbatches, loss_fn=loss_fn, scale_grads=scale_grads)
        self.pipeline_order = fill_and_drain(workers, n_microbatches)
        self._prepare_schedule_with_comms(self.pipeline_order)


def fill_and_drain(workers: Sequence[int], num_micro_batches: int) -> dict[int, list[Any]]:
    """Worker -> its passes in order: micro-batch by micro-batch forward, then backward from the last part."""
    parts = range(len(workers))
    order: dict[int, list[Any]] = {worker: [] for worker in sorted(set(workers))}
    passes = [(_ComputationType.FORWARD, part, one) for one in range(num_micro_batches) for part in parts]
    passes += [
        (_ComputationType.FULL_BACKWARD, part, one) for one in range(num_micro_batches) for part in reversed(parts)
    ]
    for kind, part, one in passes:
        order[workers[part]].append(_Action(part, kind, one))
    return order


def make_schedule(
    name: str,
    parts: Sequence[Part],
    stages: Sequence[PipelineStage],
    depth: int,
    num_micro_batches: int,
    loss: Callable[..., Any],
) -> Any:
    """The schedule object for one call with `num_micro_batches`.

    `loss` must contain every factor: gradients are summed over the micro-batches, never rescaled (`scale_grads`).
    """
    common: dict[str, Any] = {"n_microbatches": num_micro_batches, "loss_fn": loss, "scale_grads": False}
    if not is_looped(parts, depth):
        return ScheduleMapped(list(stages), [part.worker for part in parts], **common)
    if name in LoopedSchedules:
        return LoopedSchedules[name](list(stages), **common)
    if len(parts) > depth:
        return ScheduleLoopedBFS(list(stages), **common)
    # 1F1B refuses fewer micro-batches than stages; without a steady state it is GPipe anyway.
    if name == "1f1b" and num_micro_batches >= depth:
        return Schedule1F1B(stages[0], **common)
    return ScheduleGPipe(stages[0], **common)
