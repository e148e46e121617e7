"""The world of several processes: what `training.world.World` promises, over torch.distributed.

Rank = lane * depth + stage. Groups: the lanes of each stage (gradients, statistics), the stages of each lane (norms,
states, the pipeline's traffic), everyone (tallies), and for a batch-norm span that is cut the lanes that share it.
Every worker makes all groups in the same order, as torch.distributed demands.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from conveyor.launch.place import Place
from conveyor.pipeline.buckets import BucketReducer
from conveyor.training.world import GradientReducer, NothingToReduce, World

TIMEOUT = timedelta(minutes=30)


class ProcessWorld(World):
    """One worker of `lanes x depth` processes; torch.distributed must be initialised."""

    def __init__(self, lanes: int, depth: int, device: torch.device | str = "cpu", lanes_per_span: int = 1) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        lane, stage = divmod(rank, depth)
        super().__init__(rank, size, lane, lanes, stage, depth, device)
        self.lane_group = _mine(rank, [[one * depth + s for one in range(lanes)] for s in range(depth)])
        self.stage_group = _mine(rank, [[one * depth + s for s in range(depth)] for one in range(lanes)])
        self.span_group = None
        if lanes_per_span > 1:
            teams = [range(first, min(first + lanes_per_span, lanes)) for first in range(0, lanes, lanes_per_span)]
            self.span_group = _mine(rank, [[one * depth + s for one in team] for team in teams for s in range(depth)])

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Sum over the lanes of this stage."""
        if self.lanes > 1:
            _sum(tensors, self.lane_group)

    def sum_over_stages(self, tensors: Sequence[Tensor]) -> None:
        """Sum over the stages of this lane."""
        if self.depth > 1:
            _sum(tensors, self.stage_group)

    def sum_over_all(self, tensors: Sequence[Tensor]) -> None:
        """Sum over all workers."""
        _sum(tensors, None)

    def reducer(self, parameters: Iterable[nn.Parameter], bucket_bytes: int) -> GradientReducer:
        """Buckets over the lanes of this stage."""
        if self.lanes == 1:
            return NothingToReduce()
        return BucketReducer(parameters, bucket_bytes, self.lane_group)

    def broadcast_object(self, value: Any) -> Any:
        """The main worker's JSON-like `value` on every worker."""
        return self._broadcast(value, 0, None)

    def full_state(self, local: dict[str, Tensor]) -> dict[str, Tensor]:
        """The union over the stages of this lane, on every worker of the lane, on the CPU when depth > 1."""
        if self.depth == 1:
            return local
        union: dict[str, Tensor] = {}
        for stage in range(self.depth):
            source = self.lane * self.depth + stage
            mine = stage == self.stage
            about = [[name, list(one.shape), str(one.dtype)[6:]] for name, one in local.items()] if mine else None
            for name, shape, dtype in self._broadcast(about, source, self.stage_group):
                tensor = (
                    local[name].detach().to("cpu").contiguous()
                    if mine
                    else torch.empty(shape, dtype=getattr(torch, dtype))
                )
                # Bytes travel: no backend has to know the type. Empty tensors have nothing to send.
                if tensor.numel():
                    dist.broadcast(tensor.view(-1).view(torch.uint8), source, group=self.stage_group)
                union[name] = tensor
        return union

    def barrier(self) -> None:
        """Wait for all workers."""
        dist.all_reduce(torch.zeros(1))

    def close(self) -> None:
        """Leave the process groups."""
        if dist.is_initialized():
            dist.destroy_process_group()

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


def join(
    place: Place, lanes: int, depth: int, device: str = "cpu", device_ids: Sequence[int] = (), lanes_per_span: int = 1
) -> ProcessWorld:
    """Meet the other workers and form the world."""
    cuda = device == "cuda"
    chosen = torch.device("cpu")
    if cuda:
        index = device_ids[place.local_rank % len(device_ids)] if device_ids else place.local_rank
        chosen = torch.device("cuda", index % torch.cuda.device_count())
        torch.cuda.set_device(chosen)
    by_environment = place.launcher == "torchrun"
    dist.init_process_group(
        # Tallies and flags stay on the CPU: they go through gloo even when gradients go through NCCL.
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        init_method="env://" if by_environment else f"tcp://{place.address}:{place.port}",
        rank=place.rank,
        world_size=place.size,
        timeout=TIMEOUT,
    )
    return ProcessWorld(lanes, depth, chosen, lanes_per_span)


def _mine(rank: int, teams: list[list[int]]) -> Any:
    """Make a group of each team; return the one that `rank` is in (None stands for a team of everyone or of one)."""
    found = None
    for team in teams:
        group = dist.new_group(team)
        if rank in team:
            found = group
    return found


def _sum(tensors: Sequence[Tensor], group: Any) -> None:
    """All tensors of one type and device travel as one."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for members in kinds.values():
        flat = torch.cat([one.detach().reshape(-1) for one in members])
        dist.all_reduce(flat, group=group)
        for one, part in zip(members, flat.split([one.numel() for one in members]), strict=True):
            with torch.no_grad():
                one.copy_(part.view(one.shape))
