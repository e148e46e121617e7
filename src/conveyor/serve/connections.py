"""What the HTTP library does not handle: huge request heads, silent connections, and requests lost at shutdown."""

import asyncio
import contextlib
import ctypes
import resource
import socket
import struct
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD = 64 * 1024
MOST_AHEAD = 256
"""Requests of one connection that wait for the answer to an earlier one."""
DRAIN_SECONDS = 1.0
"""How long a connection that is open when the server stops may still send its request."""
_DESCRIPTORS = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
MOST_CONNECTIONS = 1 << 20 if _DESCRIPTORS == resource.RLIM_INFINITY else max(16, _DESCRIPTORS * 3 // 4)
"""HTTP connections of a process: engines, files and gRPC need descriptors too."""
_SO_ATTACH_FILTER = 26
_BACKLOG_IN_TCP_INFO = 24


class LimitedProtocol(HttpToolsProtocol):
    """Closes a connection whose request line and headers exceed `LARGEST_HEAD`; the library has no limit for them.

    Nor has it one for what may stand around the parts of a chunked body: fields behind its end (trailers), which it
    would keep and add to the headers, and extensions of chunks. They have the same limit, and no trailer is kept.

    Also closes one that sends `MOST_AHEAD` or more requests without waiting for an answer: after each answer the
    library would read another hundred kilobytes, and keep all of it in memory.
    """

    _in_head = _ended = False
    _parts = _bare_bytes = 0
    """Beginnings, heads, pieces of bodies and ends so far; bytes since the last of them."""
    _running: Any = None
    """The request that is being answered; the library's `cycle` is the last request whose head has arrived."""

    def _part(self) -> None:
        self._parts, self._bare_bytes = self._parts + 1, 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """When there are too many, one without a request under way makes room, or this one is closed."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            idle = (one for one in self.connections if _is_between(one) and one is not self)
            next((one for one in idle if not one.transport.is_closing()), self).transport.abort()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._part()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._part()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._part()
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._part()
        if len(self.pipeline) >= MOST_AHEAD:
            self.transport.close()
            return
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Mark every pending request as disconnected: the library marks only the last; others would go on writing."""
        for cycle in (self._running, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: a client that ends only its sending waits for the answers to whole requests."""
        pending = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        self._ended = pending and self.transport.get_extra_info("sslcontext") is None  # TLS knows no half end
        return self._ended

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:  # nothing more is read before these are answered
            self.flow.pause_reading()
        elif self._ended and self.cycle.response_complete:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        before = self._parts
        super().data_received(data)
        # What came with the beginning of a head does not count: it may be the end of the request before.
        if self._parts == before:
            self._bare_bytes += len(data)
            if self._bare_bytes > LARGEST_HEAD and not self.transport.is_closing():
                self.send_400_response(
                    "The request head is too large." if self._in_head else "The trailers are too large."
                )


async def sweep(http: uvicorn.Server, patience: float, also: Callable[[], None] = lambda: None) -> None:
    """Close connections that send no complete request head or do not read their answer: they would stay open for ever.

    `also` is called each time.
    """
    first_seen: dict[tuple[Any, int], float] = {}
    clock = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(min(5.0, patience))
        also()
        waiting = {(each, _not_taken(each)) for each in http.server_state.connections if _silent(each)}
        first_seen = {each: first_seen.get(each, clock()) for each in waiting}
        for (connection, not_taken), since in first_seen.items():
            if clock() - since > patience:
                if not_taken:
                    connection.transport.abort()  # closing would wait until the answer has been read
                else:
                    connection.transport.close()


def _not_taken(connection: Any) -> int:
    """Bytes of answers that wait for the other side to read."""
    return int(connection.transport.get_write_buffer_size())


def _silent(connection: Any) -> bool:
    """Whether the server waits for the client, and the library has no time limit for that.

    The library's limit on idle time between two requests stops counting at the first byte of the next one.
    """
    if _not_taken(connection):
        return True
    return _is_between(connection) and connection.timeout_keep_alive_task is None


def _is_between(connection: Any) -> bool:
    """Whether no request is being answered, and none is arriving whose head is complete."""
    return connection.cycle is None or bool(connection.cycle.response_complete)


async def drain_connections(listener: socket.socket, http: uvicorn.Server) -> None:
    """Refuse new connections, then wait until those already made have sent their requests.

    Closing a listening socket resets the connections that the system has accepted and the program has not: requests
    would be lost. So new connections are stopped first, then the waiting ones are accepted, and each open connection
    has `DRAIN_SECONDS` to send the request that may be under way on it. Its answer says that the connection closes.
    """
    refuse_new(listener)
    clock = asyncio.get_running_loop().time
    end = clock() + DRAIN_SECONDS
    await asyncio.sleep(0.05)  # for handshakes that had begun
    while clock() < end and (backlog(listener) or http.server_state.connections):
        await asyncio.sleep(0.01)


def refuse_new(listener: socket.socket) -> None:
    """Drop the first packet of every new connection (Linux; elsewhere nothing happens). No privilege is needed.

    A socket filter of four instructions: load the TCP flags, drop the packet if SYN is among them, else let it pass.
    """
    program = [(0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    with contextlib.suppress(OSError):
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(program), ctypes.addressof(code))
        )


def backlog(listener: socket.socket) -> int:
    """Connections that wait to be accepted; 0 where the system does not tell."""
    try:
        info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    except (OSError, AttributeError):
        return 0
    return int(struct.unpack_from("I", info, _BACKLOG_IN_TCP_INFO)[0])
