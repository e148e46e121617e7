"""Connect to the other workers that a launcher started, and form the world with them."""

import os
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from conveyor.launch.rank import Place, loopback
from conveyor.launch.rendezvous import Meeting
from conveyor.world.distributed import ProcessWorld

TIMEOUT = timedelta(minutes=30)


def join(
    place: Place, lanes: int, depth: int, device: str = "cpu", device_ids: Sequence[int] = (), lanes_per_span: int = 1
) -> ProcessWorld:
    """Connect to the other workers and form the world."""
    cuda = device == "cuda"
    chosen = torch.device("cpu")
    if cuda:
        index = device_ids[place.local_rank % len(device_ids)] if device_ids else place.local_rank
        chosen = torch.device("cuda", index % torch.cuda.device_count())
        torch.cuda.set_device(chosen)
    if place.local_size == place.size:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback()
    meeting = Meeting(place, os.environ)
    dist.init_process_group(
        # Counts and flags stay on the CPU: they go through gloo even when gradients go through NCCL.
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        store=meeting.store,
        rank=place.rank,
        world_size=place.size,
        timeout=TIMEOUT,
    )
    return ProcessWorld(lanes, depth, chosen, lanes_per_span, meeting)
