"""The contract between the loop and whatever computes the gradients of a lane's slots."""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor, nn

from conveyor.data.batch import Batch
from conveyor.numerics.finite import Finding


class Lane(Protocol):
    """One worker's share of a data-parallel lane: the whole model (depth 1) or one of its stages."""

    module: nn.Module
    """The part of the model that this worker holds, under the names of the whole; its parameters are the ones it updates."""

    @property
    def reads_data(self) -> bool:
        """Whether this worker needs the images: all do but the later stages of a pipeline."""
        ...

    @property
    def tallies(self) -> bool:
        """Whether this worker fills the table of `gradients`: the one that sees the labels does."""
        ...

    def gradients(self, batches: Iterator[Batch], update: int, loss_scale: float) -> Tensor:
        """Run the lane's groups of one update.

        When this returns, each `p.grad` is the sum over all slots of d(loss_scale / A R x loss of the slot), and batch
        norms hold the pending statistics of all slots: of all lanes, added in the order of the tree. The result is the
        table of tallies, float64 [groups, 5]: sums of loss, top-1 hits, top-5 hits, samples, and 1 for each slot whose
        loss was not finite; zeros for groups of other lanes, and on a stage that does not see the labels.
        """
        ...

    def close(self) -> None:
        """Leave the parameters to another lane."""
        ...

    def find_bad_layer(self, update: int, loss_scale: float) -> Finding | None:
        """What is not finite first on this worker when the last update is repeated; all workers call it together."""
        ...
