"""How the workers of a job connect to each other, and how other processes are refused.

| workers | started by | their store |
|---|---|---|
| on one machine | `conveyor` | the launcher's Unix socket, in a folder of the job that only its user can enter |
| on one machine | torchrun, mpirun, srun, TF_CONFIG | worker 0's Unix socket, in a folder that only its user can enter |
| on several | `conveyor launch` | the first host's launcher, at its address alone |
| on several | mpirun, srun, TF_CONFIG | worker 0, at the address and port that all of them know |
| on several | torchrun | worker 0, which writes its address to torchrun's store; whatever answers there has to prove the secret |

Keys are never used twice: every round of a job has a prefix of its own, and so has every run of one script. A store
that a worker has been to before is one of an earlier start: it waits for the new one.
"""

import contextlib
import hashlib
import hmac
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from conveyor.errors import UserError
from conveyor.launch import secret
from conveyor.launch.interface import own_address, reachable
from conveyor.launch.rank import Place
from conveyor.launch.store import UNIX, Server, Store
from conveyor.launch.watch import BEAT_SECONDS, SILENT_BEATS, Watch
from conveyor.world import restarts
from conveyor.world.proof import digest

ADDRESS, ROUND = "CONVEYOR_STORE", "CONVEYOR_ROUND"
LOCAL = b"the folder of the socket is the guard"
"""Used in place of a secret where file permissions keep other users out."""

PATIENCE = 300.0
"""Seconds to wait for worker 0: on a busy cluster some programs start minutes after others."""

log = logging.getLogger(__name__)


class Meeting:
    """This worker's connection to the others: a store, and the key that authenticates their other connections.

    `number` counts the runs of one process: a script may train several times.
    """

    def __init__(self, place: Place, environment: Mapping[str, str], number: int = 0) -> None:
        self.server: Server | None = None
        self.watch: Watch | None = None
        start = "0"
        if environment.get(ADDRESS):
            known = secret.load(environment)
            store = Store(environment[ADDRESS], known)
            start = environment.get(ROUND, "0")
        elif place.local_size == place.size:
            known = LOCAL
            name = f"{place.launcher} {place.address} {place.port} {place.job} {restarts.starts(environment)} {number}"
            folder = secret.private_folder()
            if place.rank == 0:
                remove_dead_sockets(folder)
            path = folder / hashlib.sha256(name.encode()).hexdigest()[:16]
            store = self._hosted(place, known, f"{UNIX}{path}", lambda: f"{UNIX}{path}")
        else:
            known = secret.load(environment)
            store = self._across(place, known)
        # A store made in Python lives as long as a Python reference to it: the prefix store alone does not keep it.
        self._kept = store
        self.store: Any = dist.PrefixStore(f"workers.{start}.{number}", store)  # type: ignore[attr-defined]
        # On one machine no other user reaches the store; across machines its traffic can be read: add the secret.
        self.key = digest(known, b"workers", self.store.compare_set("key", "", secret.new()))

    def close(self) -> None:
        """Worker 0 serves until all others are done: call it after a barrier."""
        if self.watch is not None:
            self.watch.close()
        self._kept.close()
        if self.server is not None:
            self.server.close()

    def _across(self, place: Place, known: bytes) -> Store:
        reachable(place.address)
        if not has_torchrun_store():
            here = f"{own_address(place.address, place.hosts[1:])}:{place.port}" if place.rank == 0 else ""
            return self._hosted(place, known, here, lambda: f"{place.address}:{place.port}")
        board = torchrun_store(place)
        here = f"{own_address(place.address)}:0" if place.rank == 0 else ""
        # Read anew for each attempt: after a restart the address of the one before may still be there.
        return self._hosted(
            place,
            known,
            here,
            lambda: str(board.get("conveyor/store").decode()),
            lambda at: board.set("conveyor/store", at),
        )

    def _hosted(
        self,
        place: Place,
        known: bytes,
        here: str,
        address: Callable[[], str],
        publish: Callable[[str], None] = lambda at: None,
    ) -> Store:
        """A store that worker 0 serves at `here`, and that the others find at `address`."""
        if place.rank == 0:
            self.server = Server(here, known, None if place.local_size == place.size else SILENT_BEATS)
            publish(self.server.address)
            found = self.server.address
            address = lambda: found  # noqa: E731 - the one that it was given
        store = _arrived(place, known, address)
        self.watch = Watch(Store(store.at, known, answer=SILENT_BEATS * BEAT_SECONDS), place.rank)
        return store


def _arrived(place: Place, known: bytes, address: Callable[[], str]) -> Store:
    """A connection to the store of this start: one that has seen this worker before is about to end."""
    until, told = time.monotonic() + PATIENCE, time.monotonic() + 15
    while True:
        try:
            store = Store(address, known, patience=min(15.0, max(0.0, until - time.monotonic())))
            if store.add(f"arrived/{place.rank}", 1) == 1:
                return store
            store.close()
        except dist.DistNetworkError as error:
            if time.monotonic() > until:
                raise dist.DistNetworkError(f"no answer from worker 0 within {PATIENCE:.0f} s: {error}") from error
        if told and time.monotonic() > told:
            log.warning("worker %d waits for worker 0 at %s", place.rank, address())
            told = 0.0
        time.sleep(0.2)


def remove_dead_sockets(folder: Path) -> None:
    """Remove what killed workers left: sockets at which nobody listens any more."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            if path.is_socket():
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink(missing_ok=True)
                except OSError:
                    continue


def has_torchrun_store() -> bool:
    """Whether torchrun's agent started this worker and shares its store with it."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def torchrun_store(place: Place) -> Any:
    """The store of torchrun's agent, which outlives the workers and which anyone on the network can write to."""
    return dist.TCPStore(place.address, place.port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]


def starts_under_torchrun(place: Place, run: int) -> int:
    """How often run number `run` of the job was begun before; worker 0 asks once for each start.

    torchrun's own count is one for each of its agents: it leaves out those that only followed another one's restart.
    """
    return int(torchrun_store(place).add(f"conveyor/starts/{run}", 1)) - 1


def kept_by_torchrun(place: Place, text: str, run: int = 0) -> str:
    """`text` of the job's first start; it is signed, because anyone on the network can write into torchrun's store."""
    known = secret.load(os.environ)

    def signed(content: bytes) -> bytes:
        return digest(known, b"kept", content).hex().encode() + b" " + content

    found = bytes(torchrun_store(place).compare_set(f"conveyor/kept/{run}", "", signed(text.encode())))
    content = found.partition(b" ")[2]
    if not hmac.compare_digest(found, signed(content)):
        raise UserError("someone without the job's secret has written into torchrun's store: use a private network.")
    return content.decode()
