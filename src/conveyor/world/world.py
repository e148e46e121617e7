"""All communication between the workers of a run: the training loop uses a `World` and nothing else.

A run has `lanes x depth` workers. Worker (lane, stage) has rank = lane * depth + stage. Two directions matter:

- over the *lanes* of one stage: the same parameters, different slots. Gradients, batch-norm statistics, tallies.
- over the *stages* of one lane: different parameters, the same slots. Squared norms, found-inf, tallies, full states.

This class is the world of a single worker: every reduction is the identity. A world of several processes overrides the
methods that communicate; none of them is called while another is pending, and all workers call them in the same order.

`sum_over_stages` and `sum_over_all` add in an order that depends on the layout, so what they add must be exact in any
order: counts, or tables in which every worker fills rows of its own. Everything else goes along the tree (`sum_parts`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from conveyor.checkpoint.state import State
from conveyor.errors import UserError
from conveyor.options.batch import LayoutOptions
from conveyor.tree import Dealt
from conveyor.world.gradients import GradientSum


class World:
    """The rank of this worker, and its communication with the others."""

    def __init__(self, device: torch.device | str = "cpu", *, rank: int = 0, lanes: int = 1, depth: int = 1) -> None:
        self.rank, self.size = rank, lanes * depth
        self.lanes, self.depth = lanes, depth
        self.lane, self.stage = divmod(rank, depth)
        self.device = torch.device(device)
        self.stage_group: Any = None
        """Process group of this lane's workers, in the order of their stages."""
        self.span_group: Any = None
        """Process group of the lanes that share a batch-norm span with this one, at this stage."""

    @property
    def is_main(self) -> bool:
        """Whether this worker writes the run folder and prints."""
        return self.rank == 0

    # --- reductions, all in place and equal on every participant afterwards ---

    def sum_over_stages(self, tensors: Sequence[Tensor]) -> None:
        """Sum over the stages of this lane."""

    def sum_over_all(self, tensors: Sequence[Tensor]) -> None:
        """Sum over all workers; a stage that has nothing to add brings zeros."""

    def sum_parts(self, parts: Tensor, dealt: Dealt) -> Tensor:
        """Sum over the groups of an update, in the order of the tree, from every lane's parts [p, n] to [n]."""
        return parts[0]

    def gradient_sum(self, sections: Sequence[Sequence[nn.Parameter]], bucket_bytes: int, dealt: Dealt) -> GradientSum:
        """What sums the gradients of these parameters over the groups of an update; made once for a run."""
        return GradientSum(sections, bucket_bytes, dealt)

    # --- objects and states ---

    def broadcast_object(self, value: Any) -> Any:
        """The main worker's `value` on every worker (JSON-like values only)."""
        return value

    def of_all(self, value: Any) -> list[Any]:
        """The JSON-like `value` of every worker, by rank."""
        return [value]

    def of_stages(self, value: Any) -> list[Any]:
        """The JSON-like `value` of every worker of this lane, by stage."""
        return [value]

    def pass_on(self, flat: Tensor, size: int) -> Tensor:
        """Bytes to the lane's next stage; `size` bytes from the stage before. A ring."""
        return flat

    def broadcast_state(self, state: State | None, source: int) -> State:
        """The state that worker `source` has, on every worker."""
        assert state is not None
        return state

    def full_state(self, local: dict[str, Tensor]) -> dict[str, Tensor]:
        """The union over the stages of this lane of `{full name: tensor}`, on every worker of the lane."""
        return local

    def barrier(self) -> None:
        """Wait for all workers."""

    def close(self) -> None:
        """Leave the process groups."""


def validation_device(options: LayoutOptions, device: torch.device, rank: int) -> torch.device:
    """Where the worker that trains on `device` validates: one of `--validation-device-ids`, or the same device."""
    chosen = options.validation_device_ids
    return torch.device("cuda", chosen[rank % len(chosen)]) if chosen and device.type == "cuda" else device


def device_for(options: LayoutOptions) -> torch.device:
    """The device of a worker that is alone; of several GPUs the first one that was asked for."""
    usable = options.device != "cpu" and torch.cuda.is_available()
    if options.device == "cuda" and not usable:
        raise UserError("--device cuda: PyTorch finds no CUDA device here; use --device cpu or install a CUDA build")
    return torch.device("cuda", (options.device_ids or (0,))[0]) if usable else torch.device("cpu")
