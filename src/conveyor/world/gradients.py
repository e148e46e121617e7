"""The gradient of an update: the sum over its groups in the order of the tree, over all lanes, in buckets.

Within a lane the gradients of each group are kept apart and added up as the tree says; the buckets of the lane's last
group leave for the other lanes while its backward pass still runs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from conveyor.numerics import foreach
from conveyor.tree import Dealt, TreeSum
from conveyor.world.exchange import Exchange, Pending
from conveyor.world.shared_rows import SharedRows


class Bucket:
    """Parameters whose gradients are sent together."""

    def __init__(self, parameters: list[nn.Parameter], section: int, leaves: int) -> None:
        self.parameters, self.section = parameters, section
        self.sums: TreeSum[list[Tensor]] = TreeSum(leaves, _add)
        self.waiting: set[int] = set()
        self.pending: Pending | None = None
        self.shared: SharedRows | None = None
        self.numel = sum(one.numel() for one in parameters)

    def take(self) -> list[Tensor]:
        """The gradients of one group, which leave the parameters; half precision is summed in float32."""
        found = []
        for parameter in self.parameters:
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                gradient = torch.zeros_like(parameter, dtype=_sum_type(parameter))
            found.append(gradient.to(_sum_type(parameter)))
        return found

    def flat(self, parts: list[list[Tensor]]) -> Tensor:
        """Parts of the sum as one tensor [parts, values]."""
        first = self.parameters[0]
        if self.shared is not None:
            made = self.shared.rows()
        else:
            made = torch.empty(len(parts), self.numel, dtype=_sum_type(first), device=first.device)
        for row, part in zip(made, parts, strict=True):
            foreach.copy_(self.views(row), part)
        return made

    def give(self, gradients: list[Tensor]) -> None:
        """Make these the parameters' gradients."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.to(parameter.dtype)

    def views(self, row: Tensor) -> list[Tensor]:
        """The gradients in a row of `flat`, in the parameters' shapes."""
        parts = row.split([one.numel() for one in self.parameters])
        return [_view(part, one) for part, one in zip(parts, self.parameters, strict=True)]


class GradientSum:
    """Makes p.grad the sum over all groups of an update.

    For each update: `leaf` after the backward pass of every group of this lane, `start` before the last one, `finish`
    after it. A section is a set of parameters whose groups end together: a stage of a pipeline.

    Gradients become final in the order of the backward pass, so buckets hold the parameters in reverse order. All lanes
    launch the same buckets in the same order, whatever order their hooks fire in: bucket i waits for bucket i - 1. A
    gradient whose hook never fires (an unused parameter, a zero-bubble weight pass, a lane without groups) is sent by
    `finish`.
    """

    def __init__(
        self,
        sections: Sequence[Sequence[nn.Parameter]],
        bucket_bytes: int,
        dealt: Dealt,
        lane: int = 0,
        exchange: Exchange | None = None,
    ) -> None:
        self._groups, self._exchange = dealt.lanes[lane], exchange
        packed = [pack(list(section), bucket_bytes) for section in sections]
        self._sections = [[Bucket(part, n, dealt.groups) for part in section] for n, section in enumerate(packed)]
        self._left = [set(self._groups) for _ in sections]
        self.buckets = [bucket for section in self._sections for bucket in section]
        self._armed = False
        self._next = 0
        self._bucket_of = {id(one): bucket for bucket in self.buckets for one in bucket.parameters}
        self._hooks: list[Any] = []
        if exchange is not None:
            for bucket in self.buckets:
                bucket.shared = exchange.shared(bucket.numel, _sum_type(bucket.parameters[0]))
            self._hooks = [
                one.register_post_accumulate_grad_hook(self._ready)
                for bucket in self.buckets
                for one in bucket.parameters
            ]

    @torch.no_grad()
    def leaf(self, group: int, section: int = 0) -> None:
        """The backward pass of `group` through `section` is done: its gradients are taken away, unless it is the last."""
        if len(self._left[section]) == 1:
            return
        self._left[section].remove(group)
        for bucket in self._sections[section]:
            bucket.sums.push((group, group + 1), bucket.take())

    def start(self) -> None:
        """From now on a gradient that is accumulated is final."""
        self._armed, self._next = True, 0
        for bucket in self.buckets:
            bucket.waiting = {id(one) for one in bucket.parameters}

    @torch.no_grad()
    def finish(self) -> None:
        """Wait until every gradient is the sum over all groups."""
        if not self._armed:
            self.start()
        self._armed = False
        while self._next < len(self.buckets):
            self._launch()
        for bucket in self.buckets:
            if bucket.pending is not None:
                bucket.give(bucket.views(bucket.pending()))
                bucket.pending = None
        self._left = [set(self._groups) for _ in self._sections]

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _ready(self, parameter: Tensor) -> None:
        if not self._armed:
            return
        self._bucket_of[id(parameter)].waiting.discard(id(parameter))
        while self._next < len(self.buckets) and not self.buckets[self._next].waiting:
            self._launch()

    @torch.no_grad()
    def _launch(self) -> None:
        bucket = self.buckets[self._next]
        self._next += 1
        for group in self._left[bucket.section]:
            bucket.sums.push((group, group + 1), bucket.take())
        parts = bucket.sums.take()
        if self._exchange is None:
            bucket.give(parts[0])
            return
        flat = bucket.flat(parts)
        bucket.pending = self._exchange.begin(flat) if bucket.shared is None else bucket.shared.begin()


def pack(parameters: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """The parameters that need gradients, last first, in buckets of one type and at most `bucket_bytes` (or one)."""
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for one in reversed([parameter for parameter in parameters if parameter.requires_grad]):
        bytes_of_one = one.numel() * one.element_size()
        same = buckets and buckets[-1][0].dtype == one.dtype and buckets[-1][0].device == one.device
        if not same or size + bytes_of_one > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(one)
        size += bytes_of_one
    return buckets


def _add(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    foreach.add_(left, right)
    return left


def _sum_type(parameter: Tensor) -> torch.dtype:
    """Half-precision gradients are summed in float32."""
    return torch.float32 if parameter.dtype in (torch.float16, torch.bfloat16) else parameter.dtype


def _view(part: Tensor, like: Tensor) -> Tensor:
    """`part` with the shape and memory format of `like`, so that adding to it is one flat addition."""
    dense = like.is_contiguous() or (like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last))
    return part.as_strided(like.shape, like.stride(), part.storage_offset()) if dense else part.view(like.shape)
