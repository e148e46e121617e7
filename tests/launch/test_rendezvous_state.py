"""The rendezvous state between launchers is JSON that is checked; a pickle in its place is never opened."""

import base64
import json
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.elastic.rendezvous import RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
    _NodeDesc,
    _RendezvousState,
)

from conveyor.launch.rendezvous_state import MAX_NODES, JsonBackend, decode, encode
from conveyor.launch.store import UNIX, Server, Store

SECRET = b"known to the job alone"
KEY = "torch.rendezvous.job"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    server = Server(f"{UNIX}{tmp_path / 'store'}", SECRET)
    made = Store(server.address, SECRET)
    yield made
    made.close()
    server.close()


class Opened:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.path),)


def full() -> _RendezvousState:
    state = _RendezvousState()
    nodes = [_NodeDesc(f"host{number}", 100 + number, number) for number in range(4)]
    now = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    state.round, state.complete, state.closed, state.deadline = 3, True, True, now
    state.participants = {nodes[1]: 1, nodes[0]: 0}
    state.wait_list, state.redundancy_list = {nodes[2]}, {nodes[3]}
    state.last_heartbeats = {node: now + timedelta(seconds=node.pid) for node in nodes}
    return state


def test_it_knows_torchs_state() -> None:
    """The private parts that `launch.rendezvous` and `launch.agent` touch, as torch 2.13.0 has them."""
    assert torch.__version__.partition("+")[0] == "2.13.0", "compare dynamic_rendezvous.py of this torch, then go on"
    assert [one.name for one in fields(_NodeDesc)] == ["addr", "pid", "local_id"]
    assert sorted(vars(_RendezvousState())) == [
        "closed", "complete", "deadline", "last_heartbeats", "participants", "redundancy_list", "round", "wait_list",
    ]  # fmt: skip


@pytest.mark.parametrize("state", [_RendezvousState(), full()], ids=["new", "full"])
def test_there_and_back(state: _RendezvousState) -> None:
    assert vars(decode(encode(state))) == vars(state)
    assert encode(decode(encode(state))) == encode(state)


def test_a_handler_meets_through_json(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own handler closes a round; what lies in the store is JSON."""
    # As `launch.agent` sets it.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    handler = DynamicRendezvousHandler.from_backend(
        "job", store, JsonBackend(store, "job"), min_nodes=1, max_nodes=1, local_addr="here",
        timeout=RendezvousTimeout(last_call=timedelta(seconds=1)),
    )  # fmt: skip
    found = handler.next_rendezvous()
    assert (found.rank, found.world_size) == (0, 1)
    stored = json.loads(base64.b64decode(store.get(KEY)))
    assert stored["complete"] is True
    assert [node[0] for node, rank in stored["participants"]] == ["here"]
    assert handler.shutdown()
    assert json.loads(base64.b64decode(store.get(KEY)))["closed"] is True


def test_only_one_of_two_writers_wins(store: Store) -> None:
    first, second = JsonBackend(store, "job"), JsonBackend(store, "job")
    assert first.get_state() is None
    state = full()
    done = first.set_state(pickle.dumps(state))
    assert done is not None
    assert done[2] is True
    state.round = 7
    late = second.set_state(pickle.dumps(state))
    assert late is not None
    assert late[2] is False
    assert pickle.loads(late[0]).round == 3
    next_one = second.set_state(pickle.dumps(state), late[1])
    assert next_one is not None
    assert next_one[2] is True
    found = first.get_state()
    assert found is not None
    assert pickle.loads(found[0]).round == 7


def test_a_pickle_in_the_store_is_not_opened(store: Store, tmp_path: Path) -> None:
    """Even from someone who knows the secret."""
    backend = JsonBackend(store, "job")
    store.set(KEY, base64.b64encode(pickle.dumps(Opened(tmp_path / "opened"))))
    with pytest.raises(RendezvousStateError, match="not what this version writes"):
        backend.get_state()
    with pytest.raises(RendezvousStateError, match="not what this version writes"):
        backend.set_state(pickle.dumps(full()))
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("round", -1),
        ("round", True),
        ("round", 1 << 80),
        ("complete", 1),
        ("closed", None),
        ("deadline", "tomorrow"),
        ("deadline", "2026-01-02T03:04:05"),
        ("deadline", 5),
        ("participants", {"host": 0}),
        ("participants", [[["host", 1], 0]]),
        ("participants", [[["host", 1, 2], "0"]]),
        ("wait_list", [["h" * 256, 1, 2]]),
        ("wait_list", [[["host"], 1, 2]]),
        ("wait_list", [["host", 1, 2]] * (MAX_NODES + 1)),
        ("redundancy_list", [7]),
        ("last_heartbeats", [[["host", 1, 2], "2026-01-02T03:04:05"]]),
        ("more", 1),
    ],
)
def test_what_is_no_state_is_refused(field: str, value: Any) -> None:
    about = json.loads(encode(full()))
    about[field] = value
    with pytest.raises(RendezvousStateError, match="not what this version writes"):
        decode(json.dumps(about).encode())


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b"[" * 100_000, b"1" * 5_000])
def test_what_is_no_json_is_refused(content: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="not what this version writes"):
        decode(content)
