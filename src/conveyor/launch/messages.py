"""Messages between processes that share a secret: nothing is read from anyone else.

| step | who | bytes |
|---|---|---|
| 1 | server | MAGIC, 32 random bytes `s` |
| 2 | client | 32 random bytes `c`, HMAC(secret, "client" s c) |
| 3 | server | HMAC(secret, "server" s c), or it closes the connection |
| then | both | length (4 bytes), JSON, HMAC(HMAC(secret, "session" s c), direction, number of the message, JSON) |

All HMACs are SHA-256. Both sides prove the secret and neither sends it; a message that was changed, repeated, left out
or taken from another connection does not verify. The JSON is not encrypted.
"""

import hmac
import json
import secrets
import socket
import struct
import time
from typing import Any

from conveyor.world.proof import SIZE, digest

MAGIC = b"conveyor store 1\n"
HANDSHAKE_SECONDS = 5.0
MAX_BYTES = 1 << 24


class RefusedError(Exception):
    """The other side does not know our secret, or uses another protocol."""


class Channel:
    """One authenticated connection."""

    def __init__(self, connection: socket.socket, key: bytes, mine: bytes, theirs: bytes) -> None:
        self._connection = connection
        self._key, self._mine, self._theirs = key, mine, theirs
        self._sent = self._received = 0

    def send(self, value: Any) -> None:
        """Send a JSON-like value."""
        body = json.dumps(value).encode()
        self._connection.sendall(struct.pack("!I", len(body)) + body + self._mark(self._mine, self._sent, body))
        self._sent += 1

    def receive(self) -> Any:
        """The other side's next value; EOFError after its end, RefusedError when the value is not from it."""
        (length,) = struct.unpack("!I", read(self._connection, 4))
        if length > MAX_BYTES:
            raise RefusedError(f"a message of {length} bytes")
        body = read(self._connection, length)
        mark = read(self._connection, SIZE)
        if not hmac.compare_digest(mark, self._mark(self._theirs, self._received, body)):
            raise RefusedError("a message that was changed on its way")
        self._received += 1
        return json.loads(body)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _mark(self, direction: bytes, number: int, body: bytes) -> bytes:
        return digest(self._key, direction, struct.pack("!Q", number), body)


def accept(connection: socket.socket, secret: bytes) -> Channel:
    """The server's side of the handshake; RefusedError, EOFError or OSError when the client does not pass it."""
    until = time.monotonic() + HANDSHAKE_SECONDS
    connection.settimeout(HANDSHAKE_SECONDS)
    ours = secrets.token_bytes(SIZE)
    connection.sendall(MAGIC + ours)
    theirs, proof = read(connection, SIZE, until), read(connection, SIZE, until)
    if not hmac.compare_digest(proof, digest(secret, b"client", ours, theirs)):
        raise RefusedError("a wrong secret")
    connection.sendall(digest(secret, b"server", ours, theirs))
    connection.settimeout(None)
    return Channel(connection, digest(secret, b"session", ours, theirs), b"server", b"client")


def connect(connection: socket.socket, secret: bytes, seconds: float) -> Channel:
    """The client's side; `seconds` is how long it waits for each answer. EOFError when the server sends no greeting."""
    until = time.monotonic() + HANDSHAKE_SECONDS
    connection.settimeout(HANDSHAKE_SECONDS)
    if read(connection, len(MAGIC), until) != MAGIC:
        raise RefusedError("another program answers there")
    theirs, ours = read(connection, SIZE, until), secrets.token_bytes(SIZE)
    connection.sendall(ours + digest(secret, b"client", theirs, ours))
    try:
        proof = read(connection, SIZE, until)
    except (EOFError, ConnectionError):
        raise RefusedError("it does not accept this secret") from None
    if not hmac.compare_digest(proof, digest(secret, b"server", theirs, ours)):
        raise RefusedError("it does not know this secret")
    connection.settimeout(seconds)
    return Channel(connection, digest(secret, b"session", theirs, ours), b"client", b"server")


def read(connection: socket.socket, count: int, until: float | None = None) -> bytes:
    """Exactly `count` bytes; EOFError when the other side ends before, TimeoutError when they have not come by `until`.

    Without `until` the connection's own timeout applies to each part: a peer that sends a byte now and then never times
    out.
    """
    found = bytearray()
    while len(found) < count:
        if until is not None:
            connection.settimeout(max(0.001, until - time.monotonic()))
        part = connection.recv(min(count - len(found), 1 << 16))
        if not part:
            raise EOFError("the connection was closed")
        found += part
    return bytes(found)
