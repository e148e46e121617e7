"""One worker's part of a pipeline as torch.distributed.pipelining sees it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from conveyor.monitor import timeline
from conveyor.pipeline.stage_io import arrive, as_tuple, depart

Fetch = Callable[[int], Tensor]
Context = Callable[[int], AbstractContextManager[None]]


class StageModule(nn.Module):
    """Consecutive stages as one module between two boundaries.

    The first one takes a number, int64 [1], and fetches that micro-batch's images itself: they need not be prepared
    before they are needed, nor concatenated only to be split again. The last one returns the logits.
    """

    def __init__(self, stages: Sequence[nn.Module], is_first: bool, is_last: bool, copies: bool = False) -> None:
        super().__init__()
        # Zero-bubble schedules detach the outputs in place, which a view does not allow.
        self.copies = copies
        self.stages = nn.ModuleList(stages)
        self.is_first, self.is_last = is_first, is_last
        self.fetch: Fetch | None = None

    def forward(self, *received: Tensor) -> Any:
        """Wire tensors to wire tensors."""
        if self.is_first:
            assert self.fetch is not None
            tensors: tuple[Tensor, ...] = (self.fetch(int(received[0].item())),)
        else:
            tensors = arrive(received)
        for stage in self.stages:
            tensors = as_tuple(stage(*tensors))
        if self.is_last:
            (logits,) = tensors
            return logits
        sent = depart(tensors)
        return tuple(one.clone() for one in sent) if self.copies else sent


class KeyedStage(PipelineStage):
    """A pipeline stage that knows which micro-batch it computes.

    `context(i)` surrounds the forward and the backward pass (recomputation) of micro-batch i: dropout draws the same
    numbers wherever and whenever it runs. `on_last_backward` is called before this stage's last backward pass.
    """

    context: Context
    on_forward: Callable[[int, int], None]
    on_backward: Callable[[int, int], None]
    on_last_backward: Callable[[int], None]
    first_micro_batch = 0
    """Number of the update's micro-batch that is chunk 0 of this call of the schedule."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        number = self.first_micro_batch + fwd_chunk_id
        with self.context(number), timeline.here.span("forward", stage=self.stage_index, slot=number):
            result = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self.on_forward(self.stage_index, number)
        return result

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        if last_backward:
            self.on_last_backward(self.stage_index)
        number = self.first_micro_batch + bwd_chunk_id
        with self.context(number), timeline.here.span("backward", stage=self.stage_index, slot=number):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        if full_backward:
            self.on_backward(self.stage_index, number)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        number = self.first_micro_batch + bwd_chunk_id
        with self.context(number), timeline.here.span("backward", stage=self.stage_index, slot=number):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        self.on_backward(self.stage_index, number)


NUMBER = torch.zeros(1, dtype=torch.int64)
"""What the first stage is given in place of images."""
