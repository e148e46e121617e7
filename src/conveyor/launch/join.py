"""Connect to the other workers that a launcher started, and form the world with them."""

import os
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

# Its functions have the default group as a default argument: imported after `init_process_group` they would hold it for ever.
import torch.distributed.nn.functional

from conveyor.launch.interface import interface_to, use_interface
from conveyor.launch.rank import GROUP, Place, loopback
from conveyor.launch.rendezvous import Meeting
from conveyor.world.distributed import ProcessWorld

TIMEOUT = timedelta(minutes=30)


def join(
    place: Place,
    lanes: int,
    depth: int,
    device: str = "cpu",
    device_ids: Sequence[int] = (),
    lanes_per_span: int = 1,
    number: int = 0,
) -> ProcessWorld:
    """Connect to the other workers, or use an existing process group, and form the world."""
    cuda = device == "cuda"
    chosen = torch.device("cpu")
    if cuda:
        index = device_ids[place.local_rank % len(device_ids)] if device_ids else place.local_rank
        chosen = torch.device("cuda", index % torch.cuda.device_count())
        torch.cuda.set_device(chosen)
    # Counts and flags stay on the CPU: they go through gloo even when gradients go through NCCL.
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    if place.launcher == GROUP:
        return ProcessWorld(lanes, depth, chosen, lanes_per_span, backend=backend)
    if place.local_size == place.size:
        use_interface(os.environ, loopback())
    elif "GLOO_SOCKET_IFNAME" not in os.environ and (found := interface_to(place)):
        # gloo would listen at the address of this machine's own name, which need not be one that others reach.
        os.environ["GLOO_SOCKET_IFNAME"] = found
    meeting = Meeting(place, os.environ, number)
    dist.init_process_group(backend, store=meeting.store, rank=place.rank, world_size=place.size, timeout=TIMEOUT)
    return ProcessWorld(lanes, depth, chosen, lanes_per_span, meeting)
