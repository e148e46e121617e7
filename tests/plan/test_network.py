"""All-reduce times."""

import numpy as np
import pytest

from conveyor.errors import UserError
from conveyor.plan.network import Link, Network, parse_bandwidth, ring, ring_by_steps


def test_ring_is_bandwidth_bound_and_tree_latency_bound() -> None:
    network = Network(Link(10e9, 1e-5), Link(1e9, 1e-5), devices_per_host=1)
    large, small = 1e9, 100.0
    assert network.reduce_seconds(large, 64, "ring") < network.reduce_seconds(large, 64, "tree")
    assert network.reduce_seconds(small, 64, "tree") < network.reduce_seconds(small, 64, "ring")
    for size in (large, small):
        best = network.reduce_seconds(size, 64)
        assert best == min(network.reduce_seconds(size, 64, name) for name in ("ring", "tree", "hierarchical"))


def test_a_ring_moves_two_copies_less_one_share() -> None:
    assert ring(800.0, 8, Link(100.0)) == pytest.approx(2 * 7 / 8 * 800 / 100)
    assert Network(Link(1), Link(1), 4).reduce_seconds(1e6, 1) == 0


def test_the_hosts_share_their_link() -> None:
    fast = Network(Link(1e15), Link(1e9), devices_per_host=8)
    assert fast.reduce_seconds(8e9, 64, "hierarchical") == pytest.approx(2 * 7 / 8 * 8, rel=1e-3)


def test_shards_put_the_bytes_of_a_ring_on_the_wire() -> None:
    network = Network(Link(100.0), Link(10.0), devices_per_host=8)
    assert network.reduce_seconds(800.0, 8, "sharded") == pytest.approx(ring(800.0, 8, Link(100.0)))
    assert network.reduce_seconds(800.0, 8, "sharded", parts=3) == pytest.approx(2 * ring(800.0, 8, Link(100.0)))
    # Of 16 workers, each of the 8 on a host sends 8 of 16 shards through its one link, twice.
    assert network.reduce_seconds(800.0, 16, "sharded") == pytest.approx(2 * 8 * 8 * (800 / 16) / 10)


@pytest.mark.parametrize("workers", [2, 3, 8, 33])
def test_step_by_step_agrees_with_the_formula(workers: int) -> None:
    ends = ring_by_steps(np.zeros(workers), 1e6, 1e-4, 1e8)
    assert ends == pytest.approx(np.full(workers, ring(1e6, workers, Link(1e8, 1e-4))))


def test_one_late_worker_delays_everyone_and_one_slow_link_paces_the_ring() -> None:
    ready = np.zeros(8)
    ready[3] = 5.0
    ends = ring_by_steps(ready, 8e6, 0.0, 1e8)
    assert ends.min() > 5.0
    assert ends.max() <= 5.0 + ring(8e6, 8, Link(1e8)) + 1e-9
    speeds = np.full(8, 1e8)
    speeds[2] = 1e7
    slow = ring_by_steps(np.zeros(8), 8e6, 0.0, speeds)
    assert slow.max() == pytest.approx(ring(8e6, 8, Link(1e7)), rel=0.25)


@pytest.mark.parametrize(
    ("text", "value"), [("100Gbit", 12.5e9), ("10GB/s", 10e9), ("800Mb", 1e8), ("25 Gbit/s", 3.125e9)]
)
def test_bandwidths(text: str, value: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(value)


def test_a_wrong_bandwidth_is_named() -> None:
    with pytest.raises(UserError, match="is not a bandwidth"):
        parse_bandwidth("fast")
