"""All communication between the workers of a run: the loop talks to a `World` and to nothing else.

A run has `lanes x depth` workers. Worker (lane, stage) has rank = lane * depth + stage. Two directions matter:

- over the *lanes* of one stage: the same parameters, different slots. Gradients, batch-norm statistics, tallies.
- over the *stages* of one lane: different parameters, the same slots. Squared norms, found-inf, tallies, full states.

This class is the world of a single worker: every reduction is the identity. A world of several processes overrides the
methods that communicate; none of them is called while another is pending, and all workers call them in the same order.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from conveyor.errors import UserError
from conveyor.options.batch import LayoutOptions


class GradientReducer(Protocol):
    """Sums gradients over the lanes, possibly while the backward pass of the last slot still runs.

    `start` is called before the backward pass of the update's last slot, `finish` after it. Between `finish` and the
    next `start` the gradients `p.grad` are the sums over all lanes.
    """

    def start(self) -> None:
        """From now on a gradient that is accumulated once more is final."""

    def finish(self) -> None:
        """Wait until every gradient is the sum over all lanes."""


class NothingToReduce:
    """The reducer of a single lane: its gradients are the sums."""

    def start(self) -> None:
        pass

    def finish(self) -> None:
        pass


class World:
    """Who this worker is, and how it talks to the others."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        lane: int = 0,
        lanes: int = 1,
        stage: int = 0,
        depth: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        if size != lanes * depth or rank != lane * depth + stage:
            raise ValueError(f"rank {rank} of {size} is not worker (lane {lane}, stage {stage}) of {lanes}x{depth}")
        self.rank, self.size = rank, size
        self.lane, self.lanes = lane, lanes
        self.stage, self.depth = stage, depth
        self.device = torch.device(device)
        self.stage_group: Any = None
        """Process group of this lane's workers, in the order of their stages."""
        self.span_group: Any = None
        """Process group of the lanes that share a batch-norm span with this one, at this stage."""

    @classmethod
    def single(cls, device: torch.device | str = "cpu") -> "World":
        """The world of a run in one process."""
        return cls(device=device)

    @property
    def is_main(self) -> bool:
        """Whether this worker writes the run folder and talks to the user."""
        return self.rank == 0

    # --- reductions, all in place and equal on every participant afterwards ---

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Sum over the lanes of this stage."""

    def sum_over_stages(self, tensors: Sequence[Tensor]) -> None:
        """Sum over the stages of this lane."""

    def sum_over_all(self, tensors: Sequence[Tensor]) -> None:
        """Sum over all workers; a stage that has nothing to add brings zeros."""

    def reducer(self, parameters: Iterable[nn.Parameter], bucket_bytes: int) -> GradientReducer:
        """What sums the gradients of `parameters` over the lanes; made once for a run."""
        return NothingToReduce()

    # --- objects and states ---

    def broadcast_object(self, value: Any) -> Any:
        """The main worker's `value` on every worker (JSON-like values only)."""
        return value

    def full_state(self, local: dict[str, Tensor]) -> dict[str, Tensor]:
        """The union over the stages of this lane of `{full name: tensor}`, on every worker of the lane."""
        return local

    def barrier(self) -> None:
        """Wait for all workers."""

    def close(self) -> None:
        """Leave the process groups."""


def device_for(options: LayoutOptions) -> torch.device:
    """The device of a worker that is alone; of several GPUs the first one that was asked for."""
    usable = options.device != "cpu" and torch.cuda.is_available()
    if options.device == "cuda" and not usable:
        raise UserError("--device cuda: PyTorch finds no CUDA device here; use --device cpu or install a CUDA build")
    return torch.device("cuda", (options.device_ids or (0,))[0]) if usable else torch.device("cpu")
