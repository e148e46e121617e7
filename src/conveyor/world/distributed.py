"""The world of several processes: the interface of `world.world.World` over torch.distributed.

Rank = lane * depth + stage. Groups: the lanes of each stage (gradients, statistics), the stages of each lane (norms,
states, the pipeline's traffic), all workers (tallies), and for a batch-norm span that is cut the lanes that share it.
A group of one worker is not made. Every worker makes all groups in the same order, as torch.distributed demands.
"""

import gc
import hmac
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from conveyor.checkpoint.state import State
from conveyor.errors import UserError
from conveyor.tree import Dealt
from conveyor.world.exchange import Exchange
from conveyor.world.gradients import GradientSum
from conveyor.world.proof import SIZE, digest
from conveyor.world.world import World

PASSED = 9
"""Tag of the copies that stages keep of each other."""
PROOF_SECONDS = timedelta(minutes=1)


class Meeting(Protocol):
    """The rendezvous of the workers; it is closed with their world."""

    key: bytes
    """Known to the workers of this job alone."""

    def close(self) -> None:
        """Called once, after the last communication."""


class ProcessWorld(World):
    """One worker of `lanes x depth` processes; torch.distributed must be initialised.

    `backend` says that the default group belongs to the caller, who may have made it for GPUs alone: all traffic goes
    through groups of our own with this backend, and `close` leaves the caller's as it is.
    """

    def __init__(
        self,
        lanes: int,
        depth: int,
        device: torch.device | str = "cpu",
        lanes_per_span: int = 1,
        meeting: Meeting | None = None,
        backend: str | None = None,
    ) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        if size != lanes * depth:
            raise ValueError(f"{size} workers are not a layout of {lanes}x{depth}")
        super().__init__(device, rank=rank, lanes=lanes, depth=depth)
        self._exchange: tuple[Dealt, Exchange] | None = None
        self.meeting, self.backend = meeting, backend
        key = meeting.key if meeting is not None else b""
        self._made: list[Any] = []
        self._all = None if backend is None else self._mine([list(range(size))], digest(key, b"own"))
        know_each_other(rank, range(size), self._all, digest(key, b"all"))
        self.lane_group = self.stage_group = None
        if lanes > 1:
            columns = [[one * depth + s for one in range(lanes)] for s in range(depth)]
            self.lane_group = self._mine(columns, digest(key, b"lanes"))
        if depth > 1:
            rows = [[one * depth + s for s in range(depth)] for one in range(lanes)]
            self.stage_group = self._mine(rows, digest(key, b"stages"))
        self.span_group = None
        if lanes_per_span > 1:
            teams = [range(first, min(first + lanes_per_span, lanes)) for first in range(0, lanes, lanes_per_span)]
            members = [[one * depth + s for one in team] for team in teams for s in range(depth)]
            self.span_group = self._mine(members, digest(key, b"spans"))

    def sum_over_stages(self, tensors: Sequence[Tensor]) -> None:
        """Sum over the stages of this lane."""
        if self.depth > 1:
            _sum(tensors, self.stage_group)

    def sum_over_all(self, tensors: Sequence[Tensor]) -> None:
        """Sum over all workers."""
        _sum(tensors, self._all)

    def sum_parts(self, parts: Tensor, dealt: Dealt) -> Tensor:
        """Sum over the groups of an update, over the lanes of this stage."""
        exchange = self._exchange_of(dealt)
        return parts[0] if exchange is None else exchange.begin(parts)()

    def gradient_sum(self, sections: Sequence[Sequence[nn.Parameter]], bucket_bytes: int, dealt: Dealt) -> GradientSum:
        """Buckets over the lanes of this stage."""
        return GradientSum(sections, bucket_bytes, dealt, self.lane, self._exchange_of(dealt))

    def _exchange_of(self, dealt: Dealt) -> Exchange | None:
        if self.lanes == 1:
            return None
        if self._exchange is None or self._exchange[0] != dealt:
            ranks = [one * self.depth + self.stage for one in range(self.lanes)]
            self._exchange = (dealt, Exchange(dealt, self.lane, ranks, self.lane_group, self.device))
        return self._exchange[1]

    def broadcast_object(self, value: Any) -> Any:
        """The main worker's JSON-like `value` on every worker."""
        return self._broadcast(value, 0, self._all)

    def of_all(self, value: Any) -> list[Any]:
        """The JSON-like `value` of every worker, by rank."""
        return [self._broadcast(value, rank, self._all) for rank in range(self.size)]

    def of_stages(self, value: Any) -> list[Any]:
        """The JSON-like `value` of every worker of this lane, by stage."""
        if self.depth == 1:
            return [value]
        first = self.lane * self.depth
        return [self._broadcast(value, first + stage, self.stage_group) for stage in range(self.depth)]

    def pass_on(self, flat: Tensor, size: int) -> Tensor:
        """Bytes to the lane's next stage; `size` bytes from the stage before. A ring."""
        if self.depth == 1:
            return flat
        first = self.lane * self.depth
        found = torch.empty(size, dtype=torch.uint8)
        works: list[Any] = [
            dist.irecv(found, first + (self.stage - 1) % self.depth, group=self.stage_group, tag=PASSED),
            dist.isend(flat, first + (self.stage + 1) % self.depth, group=self.stage_group, tag=PASSED),
        ]
        for work in works:
            work.wait()
        return found

    def broadcast_state(self, state: State | None, source: int) -> State:
        """The state that worker `source` has, on every worker, on the CPU."""
        about = None if state is None else [state.progress, state.options]
        progress, options = self._broadcast(about, source, self._all)
        found = State(model={}, progress=progress, options=options)
        for group in ("model", "optimizer", "averages"):
            given = None if state is None else getattr(state, group)
            setattr(found, group, self._broadcast_tensors(given, source, self._all))
        return found

    def full_state(self, local: dict[str, Tensor]) -> dict[str, Tensor]:
        """The union over the stages of this lane, on every worker of the lane, on the CPU when depth > 1."""
        if self.depth == 1:
            return local
        union: dict[str, Tensor] = {}
        for stage in range(self.depth):
            mine = local if stage == self.stage else None
            union |= self._broadcast_tensors(mine, self.lane * self.depth + stage, self.stage_group)
        return union

    def _broadcast_tensors(self, given: dict[str, Tensor] | None, source: int, group: Any) -> dict[str, Tensor]:
        """Tensors by name from rank `source`, which is given them."""
        about = (
            [[name, list(one.shape), str(one.dtype)[6:]] for name, one in given.items()] if given is not None else None
        )
        found = {}
        for name, shape, dtype in self._broadcast(about, source, group):
            tensor = (
                torch.empty(shape, dtype=getattr(torch, dtype))
                if given is None
                else given[name].detach().to("cpu").contiguous()
            )
            # Sent as bytes: no backend has to support the type. Empty tensors have nothing to send.
            if tensor.numel():
                dist.broadcast(tensor.view(-1).view(torch.uint8), source, group=group)
            found[name] = tensor
        return found

    def barrier(self) -> None:
        """Wait for all workers."""
        dist.all_reduce(torch.zeros(1), group=self._all)

    def close(self) -> None:
        """Leave the process groups."""
        if self._exchange is not None:
            self._exchange[1].close()
        if dist.is_initialized():
            for group in self._made if self.backend is not None else [None]:
                dist.destroy_process_group(group)
        # The threads of a group of gloo end with its last reference. One that is left when Python ends, and has yet to free a
        # tensor, aborts the process.
        self._made.clear()
        self._exchange = self._all = self.lane_group = self.stage_group = self.span_group = None
        gc.collect()
        if self.meeting is not None:
            self.meeting.close()

    def _mine(self, teams: list[list[int]], key: bytes) -> Any:
        """Make a group of each team; return the one that this worker is in."""
        found = None
        for number, team in enumerate(teams):
            group = dist.new_group(team, backend=self.backend)
            if self.rank in team:
                found = group
                self._made.append(group)
                know_each_other(self.rank, team, group, digest(key, b"group", str(number).encode()))
        return found

    def _broadcast(self, value: Any, source: int, group: Any) -> Any:
        """JSON text from rank `source`; nothing is pickled."""
        text = json.dumps(value).encode() if self.rank == source else b""
        length = torch.tensor([len(text)], dtype=torch.int64)
        dist.broadcast(length, source, group=group)
        buffer = torch.zeros(int(length.item()), dtype=torch.uint8)
        if self.rank == source:
            buffer.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(buffer, source, group=group)
        return value if self.rank == source else json.loads(bytes(buffer.numpy().tobytes()))


def know_each_other(rank: int, team: Sequence[int], group: Any, key: bytes) -> None:
    """Every two members of a group prove to each other that they belong to the job.

    gloo accepts the first connection to its port as the worker that it expects. Another process that connects first
    does not know HMAC(key, from, to), and cannot relay it from the true worker, whose own connection is not accepted.
    """

    def proof(source: int, target: int) -> Tensor:
        return torch.frombuffer(bytearray(digest(key, b"%d" % source, b"%d" % target)), dtype=torch.uint8)

    others = [one for one in team if one != rank]
    sent = [dist.isend(proof(rank, other), other, group=group) for other in others]
    found = {other: torch.zeros(SIZE, dtype=torch.uint8) for other in others}
    received = [dist.irecv(found[other], other, group=group) for other in others]
    works: list[Any] = [*received, *sent]
    for work in works:
        work.wait(PROOF_SECONDS)
    for other, tensor in found.items():
        if not hmac.compare_digest(tensor.numpy().tobytes(), proof(other, rank).numpy().tobytes()):
            raise UserError(
                f"something that is not worker {other} of this job connected to worker {rank} in its place: other users or "
                "machines reach the workers' ports; use a private network."
            )


def _sum(tensors: Sequence[Tensor], group: Any) -> None:
    """Sum tensors over a group; those of one type and device are sent as one."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for members in kinds.values():
        flat = torch.cat([one.detach().reshape(-1) for one in members])
        dist.all_reduce(flat, group=group)
        for one, part in zip(members, flat.split([one.numel() for one in members]), strict=True):
            with torch.no_grad():
                one.copy_(part.view(one.shape))
