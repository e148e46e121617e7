"""Whatever is sent, the answer is a clear refusal and the server goes on."""

import base64
import contextlib
import io
import json
import socket
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.serve.conftest import IMAGES

from conveyor.serve.launcher import RunningServer

INFER, PREDICT = "/v2/models/digits/infer", "/v1/models/digits:predict"
GOOD = {"name": "images", "datatype": "UINT8", "shape": [1, 8, 8, 1], "data": [0] * 64}


def tensor(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{**GOOD, **changes}]}


def bomb(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("1", (width, height)).save(buffer, "PNG")
    return buffer.getvalue()


CORPUS: list[tuple[str, str, Any, int]] = [
    ("empty", INFER, b"", 400),
    ("not json", INFER, b"{{{", 400),
    ("not text", INFER, b"\xff\xfe\x00", 400),
    ("a number", INFER, b"7", 400),
    ("null", INFER, b"null", 400),
    ("deep", INFER, b"[" * 100_000, 400),
    ("deep and closed", PREDICT, b'{"instances":' + b"[" * 500 + b"]" * 500 + b"}", 400),
    ("no inputs", INFER, {}, 400),
    ("inputs as text", INFER, {"inputs": "images"}, 400),
    ("two inputs", INFER, {"inputs": [GOOD, GOOD]}, 400),
    ("other name", INFER, tensor(name="pixels"), 400),
    ("name as number", INFER, tensor(name=7), 400),
    ("name as list", INFER, tensor(name=["images"]), 400),
    ("other type", INFER, tensor(datatype="COMPLEX64"), 400),
    ("type as list", INFER, tensor(datatype=["UINT8"]), 400),
    ("wrong shape", INFER, tensor(shape=[1, 8, 8, 3]), 400),
    ("negative shape", INFER, tensor(shape=[-1, 8, 8, 1]), 400),
    ("huge shape", INFER, tensor(shape=[1 << 62, 8, 8, 1]), 400),
    ("shape as text", INFER, tensor(shape="1,8,8,1"), 400),
    ("fractional shape", INFER, tensor(shape=[1.5, 8, 8, 1]), 400),
    ("no shape", INFER, tensor(shape=[]), 400),
    ("no data", INFER, tensor(data=None), 400),
    ("data as text", INFER, tensor(data="0" * 64), 400),
    ("ragged data", INFER, tensor(data=[[1, 2], [3]]), 400),
    ("too little data", INFER, tensor(data=[0] * 63), 400),
    ("out of range", INFER, tensor(data=[256] + [0] * 63), 400),
    ("negative", INFER, tensor(data=[-1] + [0] * 63), 400),
    ("huge number", INFER, tensor(data=[1e300] + [0] * 63), 400),
    ("texts as data", INFER, tensor(data=["x" * 100_000, *["x"] * 20_000]), 400),
    ("texts among numbers", INFER, tensor(data=["7"] + [0] * 63), 400),
    ("tf texts", PREDICT, {"instances": ["x" * 100_000, *["x"] * 20_000]}, 400),
    ("true and false", INFER, tensor(data=[True] * 64), 400),
    ("photograph in json", INFER, tensor(datatype="BYTES", shape=[1], data=["x"]), 400),
    ("parameters as list", INFER, tensor(parameters=[1]), 200),
    ("binary size without bytes", INFER, tensor(parameters={"binary_data_size": 64}), 400),
    ("binary size as text", INFER, tensor(parameters={"binary_data_size": "64"}), 400),
    ("other output", INFER, {**tensor(), "outputs": [{"name": "secrets"}]}, 400),
    ("outputs as number", INFER, {**tensor(), "outputs": 7}, 400),
    ("output parameters as text", INFER, {**tensor(), "outputs": [{"name": "logits", "parameters": "x"}]}, 400),
    ("many outputs", INFER, {**tensor(), "outputs": [{"name": "logits"}] * 1000}, 400),
    ("classification as text", INFER, {**tensor(), "outputs": [{"name": "logits", "parameters": {"classification": "9"}}]}, 400),
    ("negative classification", INFER, {**tensor(), "outputs": [{"name": "logits", "parameters": {"classification": -9}}]}, 400),
    ("huge classification", INFER, {**tensor(), "outputs": [{"name": "logits", "parameters": {"classification": 1 << 40}}]}, 200),
    ("tf nothing", PREDICT, {}, 400),
    ("tf both", PREDICT, {"instances": [1], "inputs": [1]}, 400),
    ("tf empty", PREDICT, {"instances": []}, 400),
    ("tf text", PREDICT, {"instances": "abc"}, 400),
    ("tf other signature", PREDICT, {"signature_name": "train", "instances": [IMAGES[0].tolist()]}, 400),
    ("tf signature as list", PREDICT, {"signature_name": ["x"], "instances": [IMAGES[0].tolist()]}, 400),
    ("tf other input", PREDICT, {"instances": [{"pixels": [1]}]}, 400),
    ("tf bad base64", PREDICT, {"instances": [{"b64": "***"}]}, 400),
    ("tf base64 as number", PREDICT, {"instances": [{"b64": 7}]}, 400),
    ("tf base64 of nothing", PREDICT, {"instances": [{"b64": ""}]}, 400),
    ("tf base64 of text", PREDICT, {"instances": [{"b64": base64.b64encode(b"hello").decode()}]}, 400),
    ("tf mixed", PREDICT, {"instances": [{"b64": "aGk="}, IMAGES[0].tolist()]}, 400),
    ("tf ragged", PREDICT, {"instances": [[1], [1, 2]]}, 400),
    ("tf nested dictionaries", PREDICT, {"instances": [{"images": {"images": {"b64": "x"}}}]}, 400),
    ("page nothing", "/classify", b"", 400),
    ("page text", "/classify", b"<svg/>", 400),
    ("page half an image", "/classify", bomb(300, 300)[:60], 400),
    ("page bomb", "/classify", bomb(6000, 6000), 413),
    ("page sliver", "/classify", bomb(4000, 1), 400),
    ("tf bomb", PREDICT, {"instances": [{"b64": base64.b64encode(bomb(6000, 6000)).decode()}]}, 413),
    ("too large", INFER, b" " * 300_001, 413),
    ("too many images", PREDICT, {"instances": [[[[0]] * 8] * 8] * 200}, 400),
    ("too many photographs", PREDICT, {"instances": [{"b64": "aGk="}] * 200}, 400),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status"), [case[1:] for case in CORPUS], ids=[case[0] for case in CORPUS])
def test_corpus(http: httpx.Client, path: str, body: Any, status: int) -> None:
    response = http.post(path, content=body if isinstance(body, bytes) else json.dumps(body).encode())
    assert response.status_code == status, response.text[:300]
    if status != 200:
        assert response.json()["error"]
        assert "Traceback" not in response.text


@pytest.mark.parametrize("length", ["-1", "x", "99999", "1e3", "", "٣"])
def test_wrong_header_lengths(http: httpx.Client, length: str) -> None:
    headers = [(b"Inference-Header-Content-Length", length.encode())]
    assert http.post(INFER, content=json.dumps(tensor()).encode(), headers=headers).status_code == 400


def raw(server: RunningServer, content: bytes) -> bytes:
    """Send bytes, hang up our half, return what comes back."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        received = b""
        # The server may have hung up on us already, which is an answer too.
        with contextlib.suppress(ConnectionError, OSError):
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                received += part
        return received


@pytest.mark.parametrize(
    "content",
    [
        b"GARBAGE\r\n\r\n",
        b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"A" * 200_000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 50_000,
        b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nonly this",
    ],
)
def test_broken_http_never_hurts(server: RunningServer, http: httpx.Client, content: bytes) -> None:
    try:
        answer = raw(server, content)
    except OSError:  # the server hung up while we were still talking
        answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert http.get("/v2/health/ready").status_code == 200


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["b64", "images", "name", "shape", "data"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.tuples(st.just(PREDICT), st.fixed_dictionaries({"instances": json_values})),
        st.tuples(st.just(PREDICT), st.fixed_dictionaries({"inputs": json_values})),
        st.tuples(
            st.just(INFER),
            st.fixed_dictionaries(
                {"inputs": st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(GOOD, json_values)), max_size=2)}
            ),
        ),
        st.tuples(
            st.just(INFER),
            st.sampled_from(list(GOOD)).flatmap(
                lambda key: json_values.map(lambda value: {"inputs": [{**GOOD, key: value}]})
            ),
        ),
        st.tuples(
            st.just(INFER),
            json_values.map(lambda value: {"inputs": [GOOD], "outputs": value, "parameters": value, "id": value}),
        ),
    )
)
def test_any_json_gets_an_answer_or_a_refusal(http: httpx.Client, case: tuple[str, Any]) -> None:
    path, document = case
    response = http.post(path, content=json.dumps(document).encode())
    assert response.status_code in (200, 400, 413, 429), response.text


def test_an_endless_head_is_cut(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(OSError):
            for _ in range(5000):
                connection.sendall(b"X: " + b"y" * 1000 + b"\r\n")


def test_after_all_this_the_worker_is_the_first_one(http: httpx.Client) -> None:
    lines = dict(line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if not line.startswith("#"))
    assert float(lines["conveyor_worker_restarts_total"]) == 0
    failed = [
        float(value)
        for name, value in lines.items()
        if name.startswith("conveyor_requests_total") and 'outcome="failed"' in name
    ]
    assert sum(failed) == 0
