"""Messages that arrive slowly, or not at all, over connections that speak as little HTTP/2 as is needed."""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from conveyor.serve.protocols import grpc_server
from conveyor.serve.protocols.protos import HEALTH_SERVICE, INFERENCE_SERVICE
from conveyor.serve.service import Service
from conveyor.serve.settings import ServeSettings

DATA, HEADERS, SETTINGS = 0, 1, 4


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def head(path: str) -> bytes:
    """The header block of a call, without any compression."""
    words = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    words["content-type"] = "application/grpc"
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in words.items()
    )


@contextlib.contextmanager
def half_sent(port: int, calls: int, service: str, sent: int, size: int) -> Iterator[socket.socket]:
    """A connection with calls whose messages say that they have `size` bytes; `sent` of these have been sent."""
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b""))
        for number in range(calls):
            stream = 2 * number + 1
            connection.sendall(frame(HEADERS, 4, stream, head(f"/{service}/ServerLive")))
            connection.sendall(frame(DATA, 0, stream, b"\x00" + struct.pack(">I", size)))
            with contextlib.suppress(TimeoutError):
                for _ in range(sent >> 14):
                    connection.sendall(frame(DATA, 0, stream, bytes(1 << 14)))
        yield connection


@contextlib.contextmanager
def serving(settings: ServeSettings) -> Iterator[int]:
    """The gRPC side alone, without a model; yields its port."""
    found: list[int] = []
    started, leave = threading.Event(), threading.Event()

    async def serve() -> None:
        server = grpc_server.make_server(Service(settings))
        found.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        started.set()
        while not leave.is_set():
            await asyncio.sleep(0.02)
        await server.stop(None)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(20)
        yield found[0]
    finally:
        leave.set()
        thread.join(20)


def code(port: int, service: str, method: str, timeout: float, content: bytes = b"") -> grpc.StatusCode:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            channel.unary_unary(f"/{service}/{method}")(content, timeout=timeout)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def received(connection: socket.socket, words: bytes) -> bool:
    """Whether these words come within some seconds."""
    connection.settimeout(10)
    seen = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while words not in seen and (part := connection.recv(65536)):
            seen += part
    return words in seen


def test_a_message_that_stops_half_way_is_not_waited_for() -> None:
    with (
        serving(ServeSettings(path="x", timeout=1.0)) as port,
        half_sent(port, 1, INFERENCE_SERVICE, 0, 1000) as connection,
    ):
        assert received(connection, b"did not arrive within")


def test_only_so_many_messages_arrive_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "MOST_ARRIVING", 2)
    with (
        serving(ServeSettings(path="x", timeout=3.0)) as port,
        half_sent(port, 2, INFERENCE_SERVICE, 0, 1000) as connection,
    ):
        # Until both halves have arrived calls are answered; within 3 s they are given up.
        while (found := code(port, INFERENCE_SERVICE, "ServerLive", 0.5)) == grpc.StatusCode.OK:
            time.sleep(0.02)
        assert found == grpc.StatusCode.DEADLINE_EXCEEDED
        assert code(port, HEALTH_SERVICE, "Check", 20) == grpc.StatusCode.OK, "health has room of its own"
        assert received(connection, b"did not arrive within")
        assert code(port, INFERENCE_SERVICE, "ServerLive", 20) == grpc.StatusCode.OK


def test_a_call_without_a_token_is_refused_before_its_message_is_there() -> None:
    with (
        serving(ServeSettings(path="x", token="open sesame", timeout=60.0)) as port,
        half_sent(port, 1, INFERENCE_SERVICE, 0, 1000) as connection,
    ):
        assert received(connection, b"bearer token")


def test_stuck_senders_do_not_hold_a_service() -> None:
    with (
        serving(ServeSettings(path="x", timeout=60.0)) as port,
        half_sent(port, grpc_server.MOST_ARRIVING, INFERENCE_SERVICE, 0, 1000) as connection,
    ):
        while code(port, INFERENCE_SERVICE, "ServerLive", 0.3) == grpc.StatusCode.OK:
            pass  # until all places are taken
        for _ in range(3):
            assert code(port, INFERENCE_SERVICE, "ServerLive", 20) == grpc.StatusCode.OK
        assert received(connection, b"too slowly while others wait")


def test_a_connection_without_calls_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "IDLE_SECONDS", 0.5)
    with (
        serving(ServeSettings(path="x")) as port,
        socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b""))
        assert received(connection, b"connection idle")
        call = channel.unary_unary(f"/{INFERENCE_SERVICE}/ServerLive")
        for _ in range(3):  # a client does not notice
            call(b"", timeout=5)
            time.sleep(0.8)
