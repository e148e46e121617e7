"""Sending between workers: links and all-reduce algorithms.

A message of n bytes takes `latency + n / bandwidth`. For n bytes over p workers:
    ring           2 (p - 1) steps of n / p bytes:                    2 (p - 1) (latency + n / (p bandwidth))
    tree           up and down a binary tree:                         2 ceil(log2 p) (latency + n / bandwidth)
    hierarchical   reduce-scatter inside each host, ring all-reduce of the shares between hosts, all-gather inside
    sharded        what a run of this program does (`world.exchange`): worker j receives shard j of all others, adds the
                   shards in the order of the tree and sends the sum back; a lane whose slots are q nodes of the tree
                   sends q times as much on the way there:             (1 + q) (p - 1) (latency + n / (p bandwidth))
"""

import math
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conveyor.errors import UserError, did_you_mean

CHOICES = ("ring", "tree", "hierarchical")
"""What `auto` takes the fastest of: the order of a sum over workers is free in them."""
ALGORITHMS = (*CHOICES, "sharded", "auto")


@dataclass(frozen=True, slots=True)
class Link:
    """Bytes per second and seconds per message."""

    bandwidth: float
    latency: float = 0.0

    def seconds(self, size: float) -> float:
        """One message of `size` bytes."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True, slots=True)
class Network:
    """`inner` joins the devices of a host, `outer` the hosts (shared by the devices of a host that send at once)."""

    inner: Link
    outer: Link
    devices_per_host: int

    def shared(self, groups: int) -> "Network":
        """The network of each of `groups` concurrent reductions (one per stage): its share of devices and link."""
        outer = Link(self.outer.bandwidth / groups, self.outer.latency)
        return Network(self.inner, outer, max(1, self.devices_per_host // groups))

    def fastest(self, size: float, workers: int) -> str:
        """The all-reduce that `auto` means."""
        return min(CHOICES, key=lambda name: self.reduce_seconds(size, workers, name))

    def reduce_seconds(self, size: float, workers: int, algorithm: str = "auto", parts: int = 1) -> float:
        """An all-reduce of `size` bytes over `workers` that fill host after host; `parts` is q of the sharded one."""
        if workers <= 1 or size <= 0:
            return 0.0
        local = min(workers, self.devices_per_host)
        hosts = math.ceil(workers / local)
        if algorithm == "auto":
            algorithm = self.fastest(size, workers)
        slow = self.inner if hosts == 1 else self.outer
        if algorithm == "ring":
            return ring(size, workers, slow)
        if algorithm == "tree":
            return tree(size, workers, slow)
        if algorithm == "hierarchical":
            inside = 2 * (local - 1) * self.inner.seconds(size / local) if local > 1 else 0.0
            # Each of the local workers reduces its share between hosts at the same time, through the host's one link.
            share = Link(self.outer.bandwidth / local, self.outer.latency)
            return inside + ring(size / local, hosts, share)
        if algorithm == "sharded":
            # Every pair of workers exchanges at once; the devices of a host share its link.
            inside = (local - 1) * self.inner.seconds(size / workers)
            between = (workers - local) * self.outer.seconds(local * size / workers)
            return (1 + parts) * max(inside, between)
        raise UserError(f"there is no all-reduce {algorithm!r}{did_you_mean(algorithm, ALGORITHMS)}")


def ring(size: float, workers: int, link: Link) -> float:
    return 2 * (workers - 1) * link.seconds(size / workers) if workers > 1 else 0.0


def tree(size: float, workers: int, link: Link) -> float:
    return 2 * math.ceil(math.log2(workers)) * link.seconds(size) if workers > 1 else 0.0


def ring_by_steps(
    ready: npt.NDArray[np.float64], size: float, latency: float, bandwidth: npt.NDArray[np.float64] | float
) -> npt.NDArray[np.float64]:
    """When each worker has the result, if worker i joins the ring at `ready[..., i]` and sends at `bandwidth[i]`.

    Step by step: in each of the 2 (p - 1) steps a worker continues when it has its own and its neighbour's last chunk.
    A late worker or a slow link therefore delays first those that wait for it, finally all. Leading axes are
    independent rings, simulated at once.
    """
    workers = ready.shape[-1]
    times = np.asarray(ready, dtype=np.float64).copy()
    speeds = np.broadcast_to(np.asarray(bandwidth, dtype=np.float64), (workers,))
    step = np.roll(latency + size / workers / speeds, 1)
    for _ in range(2 * (workers - 1)):
        sent = np.maximum(times, np.roll(times, 1, axis=-1)) + step
        times = np.maximum(times, sent)
    return times


_BANDWIDTH = re.compile(r"^\s*([0-9.]+)\s*([KMGT]?)(bit|b|B|Bps|bps|bit/s|B/s)\s*$")


def parse_bandwidth(text: str) -> float:
    """`100Gbit`, `25Gb`, `10GB/s` -> bytes per second; a small b is a bit."""
    match = _BANDWIDTH.match(text)
    if match is None:
        raise UserError(f"{text!r} is not a bandwidth: write 100Gbit, 25Gbit or 10GB/s")
    factor = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[match[2]]
    bits = match[3].startswith("b")
    return float(match[1]) * factor / (8 if bits else 1)
