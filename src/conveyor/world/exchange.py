"""Sums over the lanes of a stage in the order of the tree: the same bits for any number of lanes.

Every lane brings its parts (`Dealt.parts_of`). In general the vectors are cut into one shard per lane: lane j receives
shard j of all parts, adds them up in the order of the tree and sends the sum back to all, which puts the bytes of a ring
all-reduce on the wire. Two lanes with one part each need no order, since a + b = b + a: a plain all-reduce does. The
gradients of lanes on one machine, which are sent in each update, take the way through its memory (`shared_rows`).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from conveyor import tree
from conveyor.tree import Dealt
from conveyor.world.shared_rows import SharedRows, share

TAG = 7
"""Of the messages with shards."""


Pending = Callable[[], Tensor]
"""Waits for a sum under way: the sum over all groups of the update, [n]."""


class Exchange:
    """The lanes of one stage. All of them call `begin` equally often, with vectors of equal length, in the same order."""

    def __init__(self, dealt: Dealt, lane: int, ranks: Sequence[int], group: Any, device: torch.device) -> None:
        self._dealt, self._lane, self._ranks, self._group = dealt, lane, list(ranks), group
        self._parts = dealt.parts()
        self._nodes = [node for parts in self._parts for node in parts]
        self._plain = [len(parts) for parts in self._parts] == [1, 1]
        self._on_host = device.type == "cpu"
        # gloo waits on the host, so the second half of an exchange needs a thread that waits for the first.
        self._waiter = None if self._plain or device.type == "cuda" else ThreadPoolExecutor(1, "exchange")

    def close(self) -> None:
        """End the thread that waits."""
        if self._waiter is not None:
            self._waiter.shutdown()

    def begin(self, parts: Tensor) -> Pending:
        """Start summing; `parts` [p, n] are this lane's parts, and may be overwritten. Nothing is sent if n is 0."""
        if not parts.shape[1]:
            return lambda: parts.new_empty(0)
        if self._plain:
            work: Any = dist.all_reduce(parts[0], group=self._group, async_op=True)

            def reduced() -> Tensor:
                work.wait()
                return parts[0]

            return reduced
        if self._waiter is not None:
            return self._waiter.submit(self._sum, parts).result
        stream: Any = torch.cuda.Stream(parts.device)
        stream.wait_stream(torch.cuda.current_stream(parts.device))
        with torch.cuda.stream(stream):
            vector = self._sum(parts)

        def streamed(parts: Tensor = parts) -> Tensor:  # `parts` live as long as the stream reads them
            current = torch.cuda.current_stream(vector.device)
            current.wait_stream(stream)
            vector.record_stream(current)
            return vector

        return streamed

    def shared(self, length: int, dtype: torch.dtype) -> SharedRows | None:
        """Memory for vectors of this length that all lanes have, in place of `begin`; all lanes call it in the same order."""
        if not self._on_host:
            return None
        return share([len(parts) for parts in self._parts], length, dtype, self._lane, self._group, self._total)

    def _total(self, rows: list[Tensor]) -> Tensor:
        return tree.total(self._dealt.groups, self._nodes, rows, torch.add)

    @torch.no_grad()
    def _sum(self, parts: Tensor) -> Tensor:
        length, lanes = parts.shape[1], len(self._ranks)
        size = -(-length // lanes)
        shards = [slice(min(one * size, length), min((one + 1) * size, length)) for one in range(lanes)]
        mine = shards[self._lane]
        others = [one for one in range(lanes) if one != self._lane]
        received = [
            parts[:, mine] if one == self._lane else parts.new_empty(len(self._parts[one]), mine.stop - mine.start)
            for one in range(lanes)
        ]
        self._swap(
            [(one, parts[:, shards[one]].contiguous()) for one in others], [(one, received[one]) for one in others]
        )
        rows = [row for shard in received for row in shard.unbind()]
        total = parts.new_empty(length)
        total[mine] = self._total(rows)
        self._swap([(one, total[mine]) for one in others], [(one, total[shards[one]]) for one in others])
        return total

    def _swap(self, outgoing: list[tuple[int, Tensor]], incoming: list[tuple[int, Tensor]]) -> None:
        """Send to and receive from other lanes; empty tensors are not sent."""
        messages = [
            dist.P2POp(kind, tensor, self._ranks[lane], self._group, TAG)
            for kind, list_ in ((dist.isend, outgoing), (dist.irecv, incoming))
            for lane, tensor in list_
            if tensor.numel()
        ]
        for work in dist.batch_isend_irecv(messages) if messages else []:
            work.wait()
