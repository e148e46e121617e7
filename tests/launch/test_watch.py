"""A worker that is gone is known to the store of worker 0: at once when its connection is closed, else after some silence."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from conveyor.launch.store import UNIX, Server, Store

SECRET = b"a secret that is long enough to be one"


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[Store]]:
    """Three workers at one store."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(contextlib.closing(Server(f"{UNIX}{tmp_path / 'store'}", SECRET, silence=3)))
        yield [stack.enter_context(contextlib.closing(Store(server.address, SECRET))) for _ in range(3)]


def until_lost(store: Store, rank: int) -> int:
    for _ in range(100_000):
        lost = store.beat(rank)
        if lost is not None:
            return lost
    raise AssertionError("nobody was lost")


def test_a_closed_connection_is_a_loss(workers: list[Store]) -> None:
    assert [worker.beat(rank) for rank, worker in enumerate(workers)] == [None] * 3
    workers[2].close()
    assert until_lost(workers[1], 1) == 2


def test_a_farewell_is_none(workers: list[Store]) -> None:
    assert workers[1].beat(1) is None
    workers[1].leave(1)
    workers[1].close()
    assert [workers[0].beat(0) for _ in range(20)] == [None] * 20


def test_silence_is_counted_in_beats_of_worker_0(workers: list[Store]) -> None:
    assert workers[2].beat(2) is None
    assert [workers[1].beat(1) for _ in range(20)] == [None] * 20, "worker 0 has not counted"
    told = []
    for _ in range(8):
        told.append(workers[0].beat(0))
        workers[1].beat(1)
    assert told[:3] == [None] * 3
    assert told[-1] == 2
