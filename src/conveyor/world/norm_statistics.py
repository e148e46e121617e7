"""Batch-norm statistics of an update: the sum over its groups in the order of the tree, over all lanes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from conveyor.models.layers.norms import BatchNorm
from conveyor.tree import Dealt, TreeSum


class StatisticsSum:
    """What the batch norms of a section gather in their forward passes, kept apart by group.

    The norms' pending buffers become views of one vector [v]: means, variances and counts of one norm after the other.
    """

    def __init__(self, norms: Sequence[BatchNorm], dealt: Dealt) -> None:
        self._sums: TreeSum[Tensor] = TreeSum(dealt.groups, torch.Tensor.add_)
        names = ("pending_mean", "pending_var", "pending_count")
        gathered = [getattr(norm, name) for norm in norms for name in names]
        self._vector = torch.cat(gathered).zero_() if gathered else torch.zeros(0)
        views = iter(self._vector.split([one.numel() for one in gathered]))
        for norm in norms:
            for name in names:
                setattr(norm, name, next(views))

    @torch.no_grad()
    def leaf(self, group: int) -> None:
        """The forward pass of `group` is done."""
        self._sums.push((group, group + 1), self._vector.clone())
        self._vector.zero_()

    def parts(self) -> Tensor:
        """This lane's parts of the sum, [parts, v]; the next update begins."""
        taken = self._sums.take()
        return torch.stack(taken) if taken else self._vector.new_empty(0, len(self._vector))

    @torch.no_grad()
    def give(self, total: Tensor) -> None:
        """Make the sum over all groups what the norms have gathered."""
        self._vector.copy_(total)
