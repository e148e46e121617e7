"""The bearer token, TLS, and what is open without them."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from PIL import Image
from tests.serve.conftest import IMAGES, settings_for

from conveyor.errors import UserError
from conveyor.request.callers import PROTOCOLS
from conveyor.serve.launcher import RunningServer, running_server
from conveyor.serve.protocols.protos import MESSAGES
from conveyor.serve.server import bind, serve
from conveyor.serve.service import Service
from conveyor.serve.settings import NO_GRPC, ServeSettings


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate made for this test run."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
         "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder / "cert.pem", folder / "key.pem"


def test_token_and_tls(model_folder: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    settings = settings_for(model_folder, token="open sesame", tls_cert=str(cert), tls_key=str(key))
    with running_server(settings) as server:
        context = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=server.url, verify=context, trust_env=False, timeout=30) as client:
            assert server.url.startswith("https://")
            assert client.get("/v2/health/ready").status_code == 200
            assert client.get("/").status_code == 200
            body = {"instances": IMAGES[:1].tolist()}
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "open sesame"}):
                refused = client.post("/v1/models/digits:predict", json=body, headers=headers)
                assert refused.status_code == 401
                assert refused.headers["WWW-Authenticate"] == "Bearer"
            assert client.get("/metrics").status_code == 401
            for scheme in ("Bearer", "bearer"):  # schemes are the same in capitals and small letters
                headers = {"Authorization": f"{scheme} open sesame"}
                assert client.post("/v1/models/digits:predict", json=body, headers=headers).status_code == 200
        credentials = grpc.ssl_channel_credentials(cert.read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{server.grpc_port}", credentials) as channel:
            ready = channel.unary_unary(
                "/inference.GRPCInferenceService/ServerReady",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=MESSAGES["ServerReadyResponse"].FromString,
            )
            with pytest.raises(grpc.RpcError) as caught:
                ready(MESSAGES["ServerReadyRequest"](), timeout=30)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert ready(
                MESSAGES["ServerReadyRequest"](), timeout=30, metadata=[("authorization", "Bearer open sesame")]
            ).ready


def test_a_handshake_that_does_not_come_is_not_waited_for(model_folder: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = (str(file) for file in certificate)
    with running_server(settings_for(model_folder, timeout=1.0, tls_cert=cert, tls_key=key)) as server:
        for port in (server.port, server.grpc_port):
            for begun in (b"", b"\x16\x03\x01\x02\x00\x01"):
                with socket.create_connection(
                    ("127.0.0.1", port), timeout=20
                ) as connection:  # the libraries wait 60 and 120 s
                    connection.sendall(begun)
                    assert connection.recv(100) == b""
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def private(model_folder: Path, certificate: tuple[Path, Path]) -> Iterator[RunningServer]:
    """A server whose certificate no system trusts."""
    cert, key = certificate
    with running_server(settings_for(model_folder, tls_cert=str(cert), tls_key=str(key))) as server:
        yield server


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_trust_the_certificate_they_are_given(
    private: RunningServer, certificate: tuple[Path, Path], conveyor: Callable[..., tuple[int, str, str]], protocol: str
) -> None:
    words = ["--grpc-port", private.grpc_port, "--protocol", protocol, "--clients", 1, "--num-images", 2, "--json"]
    code, out, err = conveyor("request", private.url, "--tls-ca", certificate[0], *words)
    assert code == 0, err
    assert json.loads(out)["images"] == 2


def test_a_photograph_is_sent_to_a_server_with_a_certificate_of_its_own(
    private: RunningServer,
    certificate: tuple[Path, Path],
    conveyor: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
) -> None:
    Image.fromarray(IMAGES[0, ..., 0]).save(tmp_path / "digit.png")
    code, out, _ = conveyor("request", private.url, tmp_path / "digit.png", "--tls-ca", certificate[0])
    assert (code, out.count("%")) == (0, 5)
    code, _, err = conveyor("request", private.url, tmp_path / "digit.png")
    assert code == 2
    assert "--tls-ca" in err, "the way out is named"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("https://127.0.0.1:1", "--tls-ca", "{folder}/none.pem"), "cannot be read: No such file"),
        (("https://127.0.0.1:1", "--tls-ca", "{folder}"), "cannot be read: Is a directory|no certificate"),
        (("https://127.0.0.1:1", "--tls-ca", "{folder}/text.pem"), "holds no certificate"),
        (("https://127.0.0.1:1", "--tls-ca", "{folder}/empty.pem"), "holds no certificate"),
        (("http://127.0.0.1:1", "--tls-ca", "{folder}/text.pem"), "is for a server at https://"),
    ],
)
def test_files_that_cannot_be_trusted_are_one_sentence(
    conveyor: Callable[..., tuple[int, str, str]], tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    (tmp_path / "text.pem").write_text("no certificate")
    (tmp_path / "empty.pem").write_text("")
    code, _, err = conveyor("request", *(word.format(folder=tmp_path) for word in words))
    assert code == 2
    assert re.search(reason, err), err
    assert len(err.strip().splitlines()) == 1, err


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tls_cert": "a.pem"}, "both files"),
        ({"tls_cert": "a.pem", "tls_key": "b.pem"}, "does not exist"),
        ({"queue": 4, "max_batch": 16}, "cannot hold one batch of 16"),
        ({"workers": 0}, "--workers is 0; the smallest value is 1"),
        ({"port": 70_000}, "--port is 70000; the largest value is 65535"),
        ({"token": "  "}, "empty"),
        ({"token": "Schl\u00fcssel"}, "no single line of ASCII"),
        ({"token": "one\ntwo"}, "no single line of ASCII"),
        ({"batch_sizes": (0,)}, "--batch-sizes is 0; the smallest value is 1"),
    ],
)
def test_settings_that_cannot_work(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        ServeSettings(path="x", **changes).check()  # type: ignore[arg-type]


def test_batch_sizes_are_powers_of_two_up_to_the_largest() -> None:
    assert ServeSettings(path="x", max_batch=16).sizes() == (1, 2, 4, 8, 16)
    assert ServeSettings(path="x", max_batch=6).sizes() == (1, 2, 4, 6)
    assert ServeSettings(path="x", max_batch=1).sizes() == (1,)
    assert ServeSettings(path="x", batch_sizes=(16, 4)).sizes() == (4, 16)
    settings = ServeSettings(path="x", batch_sizes=(16, 4), token="t")
    assert ServeSettings.from_json(settings.to_json()) == settings


def test_a_port_that_is_taken_while_the_model_is_loaded_is_named(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of two servers that are started together: the system lets both bind, and one of them listen."""
    start = Service.start
    said: list[str] = []
    with bind("127.0.0.1", 0) as other:

        async def slowly(service: Service) -> None:
            await start(service)
            other.listen()

        monkeypatch.setattr(Service, "start", slowly)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        signal.alarm(20)  # a server that thinks it serves would not come back
        settings = settings_for(model_folder, port=other.getsockname()[1], ready_file=str(tmp_path / "ready.json"))
        with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1 port"):
            serve(settings, said.append)
        signal.alarm(0)
    assert said == [], "it never served"
    assert not (tmp_path / "ready.json").exists()
    left = [child for child in psutil.Process().children() if "conveyor.serve.engine_process" in child.cmdline()]
    assert not left, "the engine processes have ended"


def test_a_port_that_is_taken_is_named(model_folder: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1 port"):
            bind("127.0.0.1", taken.getsockname()[1])


def test_a_grpc_port_that_is_taken_is_named_before_the_model_is_loaded(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(service: Service) -> None:
        raise AssertionError("it loads the model")

    monkeypatch.setattr(Service, "start", never)
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(UserError, match="Address already in use; choose another --grpc-port"):
            serve(settings_for(model_folder, grpc_port=taken.getsockname()[1]))
    with pytest.raises(UserError, match=r"port 65536.*choose another --grpc-port"):
        serve(settings_for(model_folder, port=65535, grpc_port=None))


@pytest.mark.parametrize("grpc_port", [0, NO_GRPC])
def test_files_that_hold_no_certificate_are_named_before_the_model_is_loaded(
    tmp_path: Path, certificate: tuple[Path, Path], grpc_port: int
) -> None:
    cert, key = (str(file) for file in certificate)
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", key, "-passout", "pass:secret", "-out", locked],
        check=True,
        capture_output=True,
    )
    for files in ((key, key), (cert, cert), (cert, str(locked))):
        with pytest.raises(UserError, match="no certificate with its key"):
            serve(
                ServeSettings(path="nowhere", port=0, grpc_port=grpc_port, tls_cert=files[0], tls_key=files[1]),
            )


def test_a_ready_file_that_cannot_be_written_is_named_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--ready-file .* cannot be written"):
        serve(ServeSettings(path="nowhere", port=0, ready_file=str(tmp_path / "file" / "ready.json")))


def test_tokens_of_files_and_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from conveyor.commands.serve import read_token

    monkeypatch.setenv("CONVEYOR_TOKEN", "open sesame\n")
    assert read_token(None) == "open sesame", "no header can carry the end of a line"
    monkeypatch.setenv("CONVEYOR_TOKEN", " \n")
    with pytest.raises(UserError, match="empty"):
        ServeSettings(path="x", token=read_token(None)).check()
    monkeypatch.delenv("CONVEYOR_TOKEN")
    assert read_token(None) is None
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="something else than text"):
        read_token(str(tmp_path / "token"))
