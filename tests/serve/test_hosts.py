"""Requests that were meant for somebody else, or that a page from elsewhere sent."""

import json
import socket

import httpx
import pytest
from tests.serve.conftest import IMAGES

from conveyor.serve.errors import Refused
from conveyor.serve.hosts import Hosts
from conveyor.serve.launcher import RunningServer
from conveyor.serve.settings import ServeSettings

NAMED = ServeSettings(path="x", host_name=("models.example.org", "*.svc.cluster.local"))


def status(settings: ServeSettings, *headers: tuple[str, str], method: str = "POST") -> int:
    try:
        Hosts(settings).check(method, [(name.encode(), value.encode("latin-1")) for name, value in headers])
    except Refused as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8502", "127.0.0.1", "[::1]:8502", "10.1.2.3", "localhost", "LOCALHOST:1", "localhost.", "a.localhost",
        socket.gethostname(), "models.example.org:443", "digits.prod.svc.cluster.local",
    ],
)  # fmt: skip
def test_names_that_are_served(host: str) -> None:
    assert status(NAMED, ("host", host)) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:8502", "example.org", "1.2.3"],
)
def test_other_names_are_refused_without_a_token(host: str) -> None:
    assert status(NAMED, ("host", host)) == 421
    assert status(ServeSettings(path="x", token="t"), ("host", host)) == 200, "the token decides"


@pytest.mark.parametrize(
    "headers",
    [
        (), (("host", ""),), (("host", "localhost"), ("host", "localhost")), (("host", "localhost"), ("host", "evil")),
        (("host", "local host"),), (("host", "user@localhost"),), (("host", "localhost:x"),), (("host", "[::1"),),
        (("host", "localhost/"),), (("host", "\xff\xfe:"),),
    ],
)  # fmt: skip
def test_no_host_two_hosts_and_malformed_ones_are_bad_requests(headers: tuple[tuple[str, str], ...]) -> None:
    for settings in (NAMED, ServeSettings(path="x", token="t")):
        assert status(settings, *headers) == 400


def test_the_origin_of_a_request_that_changes_something_is_this_server() -> None:
    here = ("host", "localhost:8502")
    assert status(NAMED, here, ("origin", "http://localhost:8502")) == 200
    assert status(NAMED, here, ("origin", "https://LOCALHOST:8502")) == 200, "a proxy in front may end TLS"
    for origin in ("http://evil.example", "http://localhost:8503", "http://localhost", "null", "", "file://"):
        assert status(NAMED, here, ("origin", origin)) == 403
        assert status(NAMED, here, ("origin", origin), method="GET") == 200, "its answer is not readable there"
    assert status(NAMED, here, ("origin", "http://localhost:8502"), ("origin", "http://evil.example")) == 403


def test_a_running_server_refuses_them(server: RunningServer, http: httpx.Client) -> None:
    body = json.dumps({"instances": IMAGES[:1].tolist()})

    def ask(**headers: str) -> httpx.Response:
        return http.post("/v1/models/digits:predict", content=body, headers=headers)

    assert ask().status_code == 200
    assert ask(**{"Content-Type": "text/plain"}).status_code == 200, "curl and scripts go on as before"
    assert ask(Origin=server.url).status_code == 200
    rebound = ask(Host="evil.example")
    assert (rebound.status_code, "--host-name" in rebound.json()["error"]) == (421, True)
    cross = ask(Origin="http://evil.example", **{"Content-Type": "text/plain"})
    assert (cross.status_code, "Origin" in cross.json()["error"]) == (403, True)
    for path in ("/", "/metrics", "/v2/health/ready"):
        assert http.get(path, headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize("hosts", [b"", b"Host: localhost\r\nHost: localhost\r\n", b"Host:\r\n"])
def test_a_request_on_the_wire_has_one_host(server: RunningServer, hosts: bytes) -> None:
    for version in (b"1.1", b"1.0"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(b"GET /v2/health/live HTTP/" + version + b"\r\n" + hosts + b"\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 400")
