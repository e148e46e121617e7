import contextlib
import resource
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.serve.conftest import settings_for

from conveyor.serve.connections import backlog, refuse_new
from conveyor.serve.launcher import RunningServer, running_server
from conveyor.serve.server import bind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="socket filters are Linux's")


def test_those_on_the_doorstep_are_served_and_nobody_new_comes_in() -> None:
    with bind("127.0.0.1", 0) as listener:
        listener.listen(8)
        address = listener.getsockname()
        with socket.create_connection(address, timeout=5) as early:
            early.sendall(b"hello")
            assert backlog(listener) == 1
            refuse_new(listener)
            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=0.3).close()
            assert backlog(listener) == 1
            served, _ = listener.accept()
            with served:
                assert served.recv(5) == b"hello"
                served.sendall(b"answer")
            assert early.recv(10) == b"answer"
            assert backlog(listener) == 0


PAGE = b"GET /page.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def impatient(model_folder: Path) -> Iterator[RunningServer]:
    with running_server(settings_for(model_folder, timeout=0.5)) as server:
        yield server


def is_held(server: RunningServer, ours: int) -> bool:
    known = psutil.Process(server.process.pid).net_connections(kind="tcp")
    return any(each.raddr and each.raddr.port == ours for each in known)


def assert_hung_up(server: RunningServer, ours: int) -> None:
    """`ours` is the port of this side."""
    time.sleep(0.3)  # until the server has taken the connection
    end = time.monotonic() + 10
    while is_held(server, ours):
        assert time.monotonic() < end, "the server holds a silent connection"
        time.sleep(0.1)


@pytest.mark.parametrize("first", [b"", GET], ids=["at once", "after a request"])
@pytest.mark.parametrize("begun", [b"GET /v2", b"GET /v2 HTTP/1.1\r\nHost:"])
def test_a_request_head_that_stops_half_way_is_not_waited_for(
    impatient: RunningServer, first: bytes, begun: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=5) as connection:
        if first:
            connection.sendall(first)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(begun)
        assert_hung_up(impatient, connection.getsockname()[1])


def test_a_head_begun_behind_other_requests_is_not_too_large(impatient: RunningServer) -> None:
    """As clients send that do not wait for an answer before the next request."""
    count = 100
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=5) as connection:
        padded = GET.replace(b"Host: ", b"Cookie: " + b"x" * 1500 + b"\r\nHost: ")
        connection.sendall(padded * count + GET[:20])
        time.sleep(0.1)  # so that the two parts are read one by one
        connection.sendall(GET[20:])
        received = b""
        while received.count(b"HTTP/1.1 200") <= count and (part := connection.recv(65536)):
            received += part
        assert b"too large" not in received
        assert received.count(b"HTTP/1.1 200") == count + 1


def memory(server: RunningServer) -> int:
    return int(psutil.Process(server.process.pid).memory_info().rss)


def test_requests_far_ahead_of_their_answers_cost_no_memory(server: RunningServer) -> None:
    before, many = memory(server), GET * 1000
    with socket.create_connection(("127.0.0.1", server.port), timeout=2) as connection:
        with contextlib.suppress(TimeoutError, ConnectionError):
            for _ in range(100):
                connection.sendall(many)
        time.sleep(1.5)  # in which a server that kept all of it would read on
        assert memory(server) - before < 40 << 20


def test_idle_connections_make_room(model_folder: Path) -> None:
    """As many as there are descriptors: files can be opened and others are answered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))  # which the server inherits
        server = stack.enter_context(running_server(settings_for(model_folder)))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(200):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=5))
            idle.sendall(GET)
        time.sleep(0.5)
        assert psutil.Process(server.process.pid).num_fds() < 128
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(GET)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")


CHUNKED = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


@pytest.mark.parametrize("path", [b"/classify", b"/nothing"], ids=["while it is read", "after its answer"])
@pytest.mark.parametrize(
    ("begun", "endless"),
    [(b"0\r\n", b"X: y\r\n"), (b"0\r\nX: ", b"y"), (b"5;", b"y")],
    ids=["fields", "field", "extension"],
)
def test_what_stands_around_chunks_has_a_limit(
    server: RunningServer, path: bytes, begun: bytes, endless: bytes
) -> None:
    before, many = memory(server), endless * (64_000 // len(endless))
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(CHUNKED % path + begun)
        with pytest.raises(ConnectionError):
            for _ in range(500):
                connection.sendall(many)
        assert memory(server) - before < 40 << 20


def test_a_trailer_is_no_header(server: RunningServer) -> None:
    """A proxy checks headers; what stands behind a body must not become one."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(CHUNKED % b"/classify" + b"0\r\nContent-Encoding: gzip\r\n\r\n" + GET)
        received = b""
        while b'{"live":true}' not in received:
            received += connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 400")
        assert b"cannot be decoded" in received


def test_answers_that_nobody_takes_are_not_kept(impatient: RunningServer) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(1)
        connection.connect(("127.0.0.1", impatient.port))
        with pytest.raises((TimeoutError, ConnectionError)):  # it waits for us to read, or has hung up already
            while True:
                connection.sendall(PAGE * 20)
        assert_hung_up(impatient, connection.getsockname()[1])


def test_a_connection_between_two_requests_is_kept(impatient: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=5) as connection:
        for _ in range(2):
            connection.sendall(GET)
            answer = b""
            while b'{"live":true}' not in answer:  # head and body may come one by one
                answer += connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200")
            time.sleep(2)  # four times the time limit of a request, which must not count here


POST = b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nno image!"


@pytest.mark.parametrize(
    "requests", [POST + POST, POST + GET, GET + POST, POST * 5], ids=["2", "post get", "get post", "5"]
)
def test_requests_ahead_of_their_answers_and_a_close_are_no_error(impatient: RunningServer, requests: bytes) -> None:
    for linger in (struct.pack("ii", 0, 0), struct.pack("ii", 1, 0)):  # an orderly end, and a reset
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", impatient.port), timeout=5) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                ours = connection.getsockname()[1]
                connection.sendall(requests)
            assert_hung_up(impatient, ours)
    words = impatient.log.read_text()
    assert "Traceback" not in words
    assert "ASGI callable" not in words


@pytest.mark.parametrize("requests", [[POST], [POST, POST], [GET]], ids=["post", "2", "get"])
def test_a_client_that_ends_its_sending_gets_its_answers(impatient: RunningServer, requests: list[bytes]) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=5) as connection:
        connection.sendall(b"".join(requests))
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(65536):
            received += part
        assert received.count(b"HTTP/1.1 ") == len(requests)


def test_half_a_request_and_an_end_are_no_request(impatient: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=5) as connection:
        connection.sendall(POST[:-3])
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(65536) == b""
