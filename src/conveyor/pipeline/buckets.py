"""Gradients summed over the lanes in buckets, while the last slot's backward pass still runs."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Bucket:
    """Some parameters and one flat buffer that holds their gradients side by side."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        first = parameters[0]
        # Half-precision gradients are summed in float32: the sum must not depend on how many lanes there are.
        half = first.dtype in (torch.float16, torch.bfloat16)
        self.flat = torch.zeros(
            sum(one.numel() for one in parameters), dtype=torch.float32 if half else first.dtype, device=first.device
        )
        self.views: list[Tensor] = []
        offset = 0
        for one in parameters:
            self.views.append(_view(self.flat[offset : offset + one.numel()], one))
            offset += one.numel()
        self.waiting: set[int] = set()
        self.work: Any = None

    def gather(self) -> None:
        """Bring the gradients into the buffer; nothing moves when they already live there."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)

    def scatter(self) -> None:
        """Make the buffer's contents the gradients: by reference, or by copy when the types differ."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if view.dtype == parameter.dtype:
                parameter.grad = view
            elif parameter.grad is None:
                parameter.grad = view.to(parameter.dtype)
            else:
                parameter.grad.copy_(view)


class BucketReducer:
    """Sum over `group`, one bucket after the other, each as soon as its gradients are final.

    Gradients become final in the order of the backward pass, so buckets hold the parameters in reverse order. All
    members of the group launch the same buckets in the same order, whatever order their hooks fire in: bucket i waits
    for bucket i - 1. A gradient whose hook never fires (an unused parameter, a zero-bubble weight pass, a lane without
    slots) is sent by `finish`.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], bucket_bytes: int, group: Any = None) -> None:
        self.group = group
        self.buckets = [Bucket(part) for part in pack(list(parameters), bucket_bytes)]
        self._bucket_of: dict[int, int] = {}
        self._hooks: list[Any] = []
        self._armed = False
        self._next = 0
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket.parameters:
                self._bucket_of[id(parameter)] = number
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._ready))

    def start(self) -> None:
        """From now on a gradient that is accumulated once more is final."""
        self._armed, self._next = True, 0
        for bucket in self.buckets:
            bucket.waiting = {id(one) for one in bucket.parameters}

    def finish(self) -> None:
        """Wait until every gradient is the sum over the group."""
        if not self._armed:
            self.start()
        self._armed = False
        while self._next < len(self.buckets):
            self._launch()
        for bucket in self.buckets:
            bucket.work.wait()
            bucket.work = None
            bucket.scatter()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _ready(self, parameter: Tensor) -> None:
        if not self._armed:
            return
        self.buckets[self._bucket_of[id(parameter)]].waiting.discard(id(parameter))
        while self._next < len(self.buckets) and not self.buckets[self._next].waiting:
            self._launch()

    @torch.no_grad()
    def _launch(self) -> None:
        bucket = self.buckets[self._next]
        self._next += 1
        bucket.gather()
        bucket.work = dist.all_reduce(bucket.flat, group=self.group, async_op=True)


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


def _view(part: Tensor, like: Tensor) -> Tensor:
    """`part` with the shape and memory format of `like`, so that accumulating into it is one flat addition."""
    dense = like.is_contiguous() or (like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last))
    return part.as_strided(like.shape, like.stride(), part.storage_offset()) if dense else part.view(like.shape)
