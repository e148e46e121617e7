"""The state of torch's elastic rendezvous as JSON: what comes from another machine is checked, never unpickled.

torch's holder of the state asks its backend for a pickle and gives it one. `JsonBackend` converts: what is stored and
sent is JSON; the pickle that the holder reads was made by this process, from an object that the checked JSON described.
Besides `launch.agent` the only module that uses private parts of torch's rendezvous (2.13).
"""

import json
import pickle
from datetime import datetime
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

MAX_NODES = 1 << 14
MAX_ADDRESS = 255
"""Characters of a host name."""

Node = list[Any]
"""[address, process, number] of one launcher."""


class JsonBackend(C10dRendezvousBackend):
    """The rendezvous state in a store, as JSON."""

    def get_state(self) -> tuple[bytes, Any] | None:
        """(a pickle made here, the token of the stored value)."""
        found = super().get_state()
        return None if found is None else (pickle.dumps(decode(found[0])), found[1])

    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        """Store what `state`, a pickle made by this process, describes; what is there afterwards, as `get_state`."""
        done = super().set_state(encode(pickle.loads(state)), token)
        return None if done is None else (pickle.dumps(decode(done[0])), done[1], done[2])


def encode(state: _RendezvousState) -> bytes:
    """The JSON of a state; equal states give equal bytes."""
    return json.dumps(
        {
            "round": state.round,
            "complete": state.complete,
            "deadline": None if state.deadline is None else state.deadline.isoformat(),
            "closed": state.closed,
            "participants": [[_listed(node), rank] for node, rank in sorted(state.participants.items())],
            "wait_list": [_listed(node) for node in sorted(state.wait_list)],
            "redundancy_list": [_listed(node) for node in sorted(state.redundancy_list)],
            "last_heartbeats": [[_listed(node), at.isoformat()] for node, at in sorted(state.last_heartbeats.items())],
        }
    ).encode()


def decode(content: bytes) -> _RendezvousState:
    """The state that `content` describes; RendezvousStateError when it is anything else."""
    try:
        about = json.loads(content)
        state = _RendezvousState()
        if not isinstance(about, dict) or set(about) != set(vars(state)):
            raise ValueError("other fields")
        state.round = _number(about["round"])
        state.complete, state.closed = _truth(about["complete"]), _truth(about["closed"])
        state.deadline = None if about["deadline"] is None else _time(about["deadline"])
        state.participants = {_node(one): _number(rank) for one, rank in _few(about["participants"])}
        state.wait_list = {_node(one) for one in _few(about["wait_list"])}
        state.redundancy_list = {_node(one) for one in _few(about["redundancy_list"])}
        state.last_heartbeats = {_node(one): _time(at) for one, at in _few(about["last_heartbeats"])}
    except (ValueError, TypeError, RecursionError) as error:
        raise RendezvousStateError(f"the state of the rendezvous is not what this version writes: {error}") from error
    return state


def _listed(node: _NodeDesc) -> Node:
    return [node.addr, node.pid, node.local_id]


def _node(value: Any) -> _NodeDesc:
    address, process, number = value
    if not isinstance(address, str) or len(address) > MAX_ADDRESS:
        raise ValueError("a node without an address")
    return _NodeDesc(address, _number(process), _number(number))


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("not a count")
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("neither true nor false")
    return value


def _time(value: Any) -> datetime:
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:
        raise ValueError("a time without its zone")
    return found


def _few(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_NODES:
        raise ValueError("not a list of nodes")
    return value
