"""The key-value store through which the workers and the launchers of a job find each other.

torch's own TCPStore listens on all interfaces and serves everyone, and the elastic agent unpickles its values. This one
listens on one Unix socket or one address and serves only clients that prove the job's secret (`launch.messages`).
"""

import contextlib
import logging
import os
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist

from conveyor.errors import UserError
from conveyor.launch import messages

log = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0
MAX_UNPROVED = 128
"""Connections that have not proved the secret yet. One more closes the oldest one of the address that has the most."""

MAX_PATH = 100
UNIX = "unix:"
"""An address is `unix:PATH` or `HOST:PORT`."""


class Server:
    """Serves a store at `address` from threads of this process; port 0 lets the system choose."""

    def __init__(self, address: str, secret: bytes, silence: int | None = None) -> None:
        self.secret, self._silence = secret, silence
        """`silence`: after how many beats of worker 0 a silent worker counts as lost; None: never."""
        self._beats: dict[int, int] = {}
        self._lost: int | None = None
        self._unproved: dict[socket.socket, str] = {}
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._refused: set[str] = set()
        with _endpoint(address) as (kind, place):
            self._listener = self._listening(address, kind, place)
        self.address = address if kind == socket.AF_UNIX else "{}:{}".format(*self._listener.server_address[:2])
        threading.Thread(target=self._listener.serve_forever, args=(0.1,), name="store", daemon=True).start()

    def _listening(self, address: str, kind: socket.AddressFamily, place: Any) -> socketserver.TCPServer:
        base = socketserver.ThreadingUnixStreamServer if kind == socket.AF_UNIX else socketserver.ThreadingTCPServer
        about = {"address_family": kind, "allow_reuse_address": True, "daemon_threads": True, "request_queue_size": 128}
        listener = cast("type[socketserver.TCPServer]", type("Listener", (base,), about))
        try:
            if kind == socket.AF_UNIX:
                Path(place).unlink(missing_ok=True)
            return listener(place, cast("Any", lambda *about: _serve(self, *about[:2])))
        except OSError as error:
            raise UserError(f"cannot listen at {address}: {(error.strerror or str(error)).lower()}.") from error

    def close(self) -> None:
        """Stop listening; open connections are served until the client closes them."""
        self._listener.shutdown()
        self._listener.server_close()
        if self.address.startswith(UNIX):
            Path(self.address.removeprefix(UNIX)).unlink(missing_ok=True)

    def answer(self, request: Sequence[Any]) -> Any:
        """What one request gives; bytes are sent as latin-1 text."""
        what, key, *more = request
        with self._lock:
            if what == "check":
                return all(one in self._values for one in key)
            if what == "beat":
                return self._beat(int(key))
            if what == "leave":
                return self._beats.pop(int(key), None)
            now = self._values.get(key)
            if what == "get":
                return None if now is None else now.decode("latin-1")
            if what == "add":
                total = int(now or b"0") + int(more[0])
                self._values[key] = str(total).encode()
                return total
            *expected, wanted = (text.encode("latin-1") for text in more)
            # As torch's stores do: nothing there counts as empty, and a failed exchange shows what is there.
            if expected and expected[0] != (now or b""):
                return (expected[0] if now is None else now).decode("latin-1")
            self._values[key] = wanted
            return more[-1]

    def _beat(self, rank: int) -> int | None:
        """Worker `rank` is alive; which one is not, if any. Silence is counted in worker 0's beats."""
        now = self._beats.get(0, 0)
        self._beats[rank] = now + 1 if rank == 0 else now
        if self._lost is None and self._silence is not None:
            self._lost = next((one for one, last in self._beats.items() if now - last > self._silence), None)
        return self._lost

    def closed(self, rank: int) -> None:
        """The connection through which worker `rank` told that it lives is closed."""
        with self._lock:
            if self._beats.pop(rank, None) is not None and self._lost is None:
                self._lost = rank

    def greet(self, connection: socket.socket, peer: str) -> None:
        """Register a connection that has not proved the secret yet.

        A flood from one address closes connections of that address only, never those of another address. A legitimate
        client at the same address (another user of that machine) succeeds if its handshake ends before `MAX_UNPROVED`
        new connections have come.
        """
        with self._lock:
            if len(self._unproved) >= MAX_UNPROVED:
                most = Counter(self._unproved.values()).most_common(1)[0][0]
                oldest = next(one for one, address in self._unproved.items() if address == most)
                del self._unproved[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._unproved[connection] = peer

    def greeted(self, connection: socket.socket) -> None:
        """The handshake has ended, with success or not."""
        with self._lock:
            self._unproved.pop(connection, None)

    def refuse(self, peer: str, why: str) -> None:
        """Log a refused connection, once for each address."""
        if peer not in self._refused and len(self._refused) < MAX_UNPROVED:
            self._refused.add(peer)
            log.warning("refused a connection%s to the job's store: %s", f" from {peer}" if peer else "", why)


def _serve(server: Server, connection: socket.socket, peer: Any) -> None:
    """One client, from its handshake to its end."""
    name = str(peer[0]) if peer else ""
    server.greet(connection, name)
    try:
        channel = messages.accept(connection, server.secret)
    except (messages.RefusedError, EOFError, OSError) as error:
        # At a Unix socket another start of this user's looks whether somebody still listens (`remove_dead_sockets`).
        if name or isinstance(error, messages.RefusedError):
            server.refuse(name, str(error) or "no answer")
        return
    finally:
        server.greeted(connection)
    watched: int | None = None
    with contextlib.suppress(messages.RefusedError, EOFError, OSError):
        while True:
            request = channel.receive()
            watched = int(request[1]) if request[0] == "beat" else watched
            channel.send(server.answer(request))
    if watched is not None:
        server.closed(watched)


class Store(dist.Store):  # type: ignore[name-defined]
    """The client, in the form that torch.distributed takes: one connection, made when it is needed.

    A request that was interrupted (a signal's exception, a lost connection) drops the connection, so that its answer is
    never read as another's. Waiting polls in growing intervals: other threads use the connection in between.
    """

    def __init__(
        self,
        address: str | Callable[[], str],
        secret: bytes,
        patience: float = ANSWER_SECONDS,
        answer: float = ANSWER_SECONDS,
    ) -> None:
        super().__init__()
        self._address = address if callable(address) else lambda: address
        self._secret, self._patience, self._answer = secret, patience, answer
        self.at = ""
        """The address of the newest connection."""
        self._channel: messages.Channel | None = None
        self._lock = threading.Lock()
        self._ask("check", [])

    def set(self, key: str, value: str | bytes) -> None:
        """`key` has `value` from now on."""
        self._ask("set", key, _text(value))

    def get(self, key: str) -> bytes:
        """The value of `key`, as soon as there is one."""
        found: list[str] = []

        def look() -> bool:
            text = self._ask("get", key)
            found[:] = [] if text is None else [text]
            return bool(found)

        self._until(look, [key], self.timeout)
        return found[0].encode("latin-1")

    def add(self, key: str, amount: int) -> int:
        """The number at `key` after adding `amount`."""
        return int(self._ask("add", key, amount))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Replace `expected` (empty: nothing) by `desired`; the value that is there afterwards."""
        return str(self._ask("compare_set", key, _text(expected), _text(desired))).encode("latin-1")

    def check(self, keys: list[str]) -> bool:
        """Whether all `keys` have values."""
        return bool(self._ask("check", keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all `keys` have values."""
        self._until(lambda: self.check(keys), keys, timeout or self.timeout)

    def beat(self, rank: int) -> int | None:
        """Tell that worker `rank` lives, always through this connection; the number of one that is lost, if any."""
        found = self._ask("beat", rank)
        return None if found is None else int(found)

    def leave(self, rank: int) -> None:
        """Worker `rank` ends in order: the end of its connection is no loss."""
        self._ask("leave", rank)

    def close(self) -> None:
        """End the connection."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _until(self, done: Callable[[], bool], keys: list[str], timeout: timedelta) -> None:
        until, pause = time.monotonic() + timeout.total_seconds(), 0.002
        while not done():
            if time.monotonic() > until:
                raise dist.DistStoreError(f"timed out waiting for {', '.join(keys)}")
            time.sleep(pause)
            pause = min(0.1, 1.5 * pause)

    def _ask(self, *request: Any) -> Any:
        with self._lock:
            try:
                if self._channel is None:
                    self._channel = self._connect()
                self._channel.send(request)
                return self._channel.receive()
            except BaseException as error:
                self._drop()
                if isinstance(error, OSError | EOFError | messages.RefusedError):
                    raise dist.DistNetworkError(f"the job's store is gone: {error}") from error
                raise

    def _connect(self) -> messages.Channel:
        until = time.monotonic() + self._patience
        # Only the first connection waits for the server to come up.
        self._patience = 0.0
        while True:
            address = self._address()
            connection = None
            try:
                with _endpoint(address) as (kind, place):
                    connection = socket.socket(kind)
                    connection.settimeout(messages.HANDSHAKE_SECONDS)
                    connection.connect(place)
                self.at = address
                return messages.connect(connection, self._secret, self._answer)
            except messages.RefusedError as error:
                if connection is not None:
                    connection.close()
                raise UserError(
                    f"no way into the job at {address}: {error}; every machine of a job needs the same secret file "
                    "(--secret-file or CONVEYOR_SECRET_FILE; without one, conveyor/secret in the user's configuration folder)."
                ) from error
            except (OSError, EOFError) as error:
                if connection is not None:
                    connection.close()
                if time.monotonic() > until:
                    raise dist.DistNetworkError(f"no connection to {address}: {error}") from error
            time.sleep(0.1)


def _text(value: str | bytes) -> str:
    return (value.encode() if isinstance(value, str) else bytes(value)).decode("latin-1")


@contextlib.contextmanager
def _endpoint(address: str) -> Iterator[tuple[socket.AddressFamily, Any]]:
    """(family, what `bind` and `connect` take)."""
    if not address.startswith(UNIX):
        host, _, port = address.rpartition(":")
        family, _, _, _, place = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        yield family, place
        return
    path = Path(address.removeprefix(UNIX))
    if len(os.fsencode(path)) < MAX_PATH or not Path("/proc/self/fd").is_dir():
        yield socket.AF_UNIX, str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # A socket's path may have 107 bytes only; the open folder has a short name.
        yield socket.AF_UNIX, f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
