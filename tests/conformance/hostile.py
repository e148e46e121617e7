"""Fifty kinds of hostile requests, and attempts to pass a token. Each takes a generator and tells what came back.

A kind returns an HTTP status, a gRPC code, or "closed" when the server hung up without a word.
"""

import base64
import contextlib
import io
import json
import random
import socket
import struct
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
from PIL import Image
from tests.serve.conftest import IMAGES
from tests.serve.protocols.test_grpc_server import DATA, HEADERS, SETTINGS, frame, head

from conveyor.serve.protocols.protos import HEALTH_SERVICE, INFERENCE_SERVICE, MESSAGES, PREDICTION_SERVICE
from conveyor.serve.protocols.tensor_proto import to_proto

Outcome = int | str | grpc.StatusCode
Kind = Callable[[random.Random], Outcome]
INFER, PREDICT = "/v2/models/digits/infer", "/v1/models/digits:predict"
GOOD = {"name": "images", "datatype": "UINT8", "shape": [1, 8, 8, 1], "data": [0] * 64}
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    1e300,
    1 << 70,
    "",
    "x" * 2000,
    [],
    {},
    [[]],
    ["x"],
    {"a": []},
    "\x00\n\x1b[31m",
    "ÿ",
]


def exchange(port: int, content: bytes, shut: bool = True) -> bytes:
    """Send bytes, hang up our half, return what comes back."""
    received = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=15) as connection:
        connection.sendall(content)
        if shut:
            connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            received += part
            if len(received) > 1 << 20:
                break
    return received


def status_of(answer: bytes) -> Outcome:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else "closed"


def request(path: str, body: bytes, *headers: str, method: str = "POST", host: str = "Host: localhost") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", host, f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("1", (width, height)).save(buffer, "PNG")
    return buffer.getvalue()


BOMB, PICTURE = png(6000, 6000), png(200, 100)


def http_kinds(port: int) -> dict[str, Kind]:
    def raw(make: Callable[[random.Random], bytes], shut: bool = True) -> Kind:
        return lambda draw: status_of(exchange(port, make(draw), shut))

    def post(path: str, make: Callable[[random.Random], Any], *headers: str) -> Kind:
        def content(draw: random.Random) -> bytes:
            body = make(draw)
            return request(path, body if isinstance(body, bytes) else json.dumps(body).encode(), *headers)

        return raw(content)

    def changed(draw: random.Random) -> Any:
        return {"inputs": [{**GOOD, draw.choice(list(GOOD)): draw.choice(ODD)}]}

    def flipped(draw: random.Random) -> bytes:
        content = bytearray(json.dumps({"inputs": [GOOD]}).encode())
        for _ in range(draw.randint(1, 5)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        return bytes(content)

    def damaged(content: bytes, draw: random.Random) -> bytes:
        changed = bytearray(content)
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        return bytes(changed)

    deep = [b"[", b'{"a":', b'[{"inputs":', b"[[[["]
    return {
        "random bytes": raw(lambda draw: draw.randbytes(draw.randint(1, 2000)) + b"\r\n\r\n"),
        "no method": raw(lambda draw: b"%s / HTTP/1.1\r\nHost: localhost\r\n\r\n" % draw.randbytes(5).hex().encode()),
        "no host": raw(lambda draw: b"GET / HTTP/1.1\r\n\r\n"),
        "two hosts": raw(lambda draw: b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n"),
        "other host": raw(lambda draw: request("/", b"", method="GET", host=f"Host: {draw.randrange(10**6)}.example")),
        "other origin": post(PREDICT, lambda draw: {"instances": [1]}, "Origin: http://evil.example", "Content-Type: text/plain"),
        "two lengths": raw(lambda draw: request(INFER, b"hello", f"Content-Length: {draw.randrange(99)}")),
        "negative length": raw(lambda draw: b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n"),
        "huge length": raw(lambda draw: b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\nx"),
        "length and chunks": raw(lambda draw: request(INFER, b"0\r\n\r\n", "Transfer-Encoding: chunked")),
        "broken chunks": raw(
            lambda draw: b"POST /classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + draw.randbytes(20)
        ),
        "large head": raw(lambda draw: b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * draw.randint(15_000, 30_000)),
        "short body": raw(lambda draw: b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nonly this"),
        "pipelined, then gone": raw(lambda draw: request(INFER, b"{}").replace(b"Connection: close\r\n", b"") * draw.randint(2, 9)),
        "upgrade": raw(lambda draw: request("/", b"", "Upgrade: websocket", "Connection: upgrade", method="GET")),
        "another method": raw(lambda draw: request(INFER, b"", method=draw.choice(["PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"]))),
        "another path": raw(
            lambda draw: request(draw.choice(["/../etc/passwd", "/%2e%2e/x", "/v2/models/%00", "//", "/v2/models/" + "a" * 3000]), b"",
                                 method="GET")
        ),
        "http/0.9": raw(lambda draw: b"GET /\r\n\r\n"),
        "tls": raw(lambda draw: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(64)),
        "http/2": raw(lambda draw: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")),
        "empty": post(INFER, lambda draw: b""),
        "no json": post(INFER, lambda draw: draw.randbytes(draw.randint(1, 500))),
        "deep json": post(INFER, lambda draw: draw.choice(deep) * draw.randint(500, 20_000)),
        "flipped json": post(INFER, flipped),
        "odd fields": post(INFER, changed),
        "odd outputs": post(INFER, lambda draw: {"inputs": [GOOD], "outputs": draw.choice([*ODD, [{"name": draw.choice(ODD)}]])}),
        "many outputs": post(INFER, lambda draw: {"inputs": [GOOD], "outputs": [{"name": "logits"}] * draw.randint(50, 3000)}),
        "huge shape": post(INFER, lambda draw: {"inputs": [{**GOOD, "shape": [1 << draw.randint(20, 62), 8, 8, 1]}]}),
        "binary size": post(
            INFER, lambda draw: {"inputs": [{**GOOD, "parameters": {"binary_data_size": draw.choice([*ODD, 1 << 40])}}]}
        ),
        "header length": post(INFER, lambda draw: b"{}" * 20, "Inference-Header-Content-Length: 7"),
        "odd instances": post(PREDICT, lambda draw: {draw.choice(["instances", "inputs"]): draw.choice(ODD)}),
        "ragged instances": post(PREDICT, lambda draw: {"instances": [[0] * draw.randint(1, 9) for _ in range(20)]}),
        "long texts": post(PREDICT, lambda draw: {"instances": ["x" * 50_000, *["x"] * 10_000]}),
        "too many images": post(PREDICT, lambda draw: {"instances": [[[[0]] * 8] * 8] * draw.randint(65, 300)}),
        "bad base64": post(PREDICT, lambda draw: {"instances": [{"b64": draw.choice([*ODD, "***", "aGk="])}]}),
        "picture bomb": post(PREDICT, lambda draw: {"instances": [{"b64": base64.b64encode(BOMB).decode()}]}),
        "damaged picture": post("/classify", lambda draw: damaged(PICTURE, draw)),
        "sliver": post("/classify", lambda draw: png(draw.randint(2000, 4000), 1)),
        "compressed": post(INFER, lambda draw: b"\x1f\x8b" + draw.randbytes(50), "Content-Encoding: gzip"),
        "too large": post(INFER, lambda draw: b" " * draw.randint(300_001, 400_000)),
    }  # fmt: skip


def grpc_kinds(port: int) -> dict[str, Kind]:
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def call(service: str, method: str, make: Callable[[random.Random], bytes], **metadata: str) -> Kind:
        def ask(draw: random.Random) -> Outcome:
            try:
                channel.unary_unary(f"/{service}/{method}")(make(draw), timeout=20, metadata=list(metadata.items()))
            except grpc.RpcError as error:
                code: grpc.StatusCode = error.code()
                return code
            return grpc.StatusCode.OK

        return ask

    def predict(draw: random.Random) -> bytes:
        message = MESSAGES["PredictRequest"]()
        message.model_spec.name = draw.choice(["digits", "other", ""])
        tensor = to_proto(IMAGES)
        tensor.dtype = draw.choice([0, 1, 3, 7, 8, 99])
        del tensor.tensor_shape.dim[:]
        for _ in range(draw.randint(0, 12)):
            tensor.tensor_shape.dim.add(size=draw.choice([-1, 0, 1, 8, 1 << 40, (1 << 62)]))
        message.inputs[draw.choice(["images", "x", ""])].CopyFrom(tensor)
        return bytes(message.SerializeToString())

    def infer(draw: random.Random) -> bytes:
        message = MESSAGES["ModelInferRequest"](
            model_name="digits", raw_input_contents=[draw.randbytes(draw.randint(0, 500))]
        )
        for _ in range(draw.randint(0, 3)):
            shape = [draw.choice([-1, 0, 1, 8, 1 << 40]) for _ in range(draw.randint(0, 9))]
            message.inputs.add(name="images", datatype=draw.choice(["UINT8", "BYTES", "FP32", "x", ""]), shape=shape)
        return bytes(message.SerializeToString())

    def flipped(draw: random.Random) -> bytes:
        message = MESSAGES["ModelInferRequest"](model_name="digits", raw_input_contents=[IMAGES.tobytes()])
        message.inputs.add(name="images", datatype="UINT8", shape=list(IMAGES.shape))
        content = bytearray(message.SerializeToString())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        return bytes(content)

    def wire(make: Callable[[random.Random], bytes]) -> Kind:
        def ask(draw: random.Random) -> Outcome:
            preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(preface + make(draw))
                connection.settimeout(0.05)
                connection.recv(1000)
            return "closed"

        return ask

    live = f"/{INFERENCE_SERVICE}/ServerLive"
    return {
        "grpc random bytes": call(INFERENCE_SERVICE, "ModelInfer", lambda draw: draw.randbytes(draw.randint(0, 500))),
        "grpc flipped": call(INFERENCE_SERVICE, "ModelInfer", flipped),
        "grpc odd infer": call(INFERENCE_SERVICE, "ModelInfer", infer),
        "grpc odd predict": call(PREDICTION_SERVICE, "Predict", predict),
        "grpc too large": call(INFERENCE_SERVICE, "ModelInfer", lambda draw: bytes(draw.randint(300_001, 500_000))),
        "grpc no method": call(HEALTH_SERVICE, "Nothing", lambda draw: draw.randbytes(20)),
        "grpc goaway": wire(lambda draw: frame(7, 0, 0, struct.pack(">II", 0, draw.randrange(14)) + b"x\nserving evil\x1b[31m")),
        "grpc half a message": wire(
            lambda draw: frame(HEADERS, 4, 1, head(live)) + frame(DATA, 0, 1, b"\x00" + struct.pack(">I", draw.randint(1, 1 << 30)))
        ),
        "grpc broken frames": wire(lambda draw: frame(draw.randrange(12), draw.randrange(256), draw.randrange(9), draw.randbytes(30))),
        "grpc broken heads": wire(lambda draw: frame(HEADERS, 4, 1, draw.randbytes(draw.randint(1, 200)))),
    }  # fmt: skip


def leaked(answer: bytes) -> bool:
    """Whether an answer holds what only the token opens: predictions, metrics, or the server's description."""
    return any(word in answer for word in (b"predictions", b"conveyor_", b"extensions"))


def token_attempts(port: int, grpc_port: int, token: str) -> list[Callable[[random.Random], bool]]:
    """Each tells whether something was answered that needs the token."""
    channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}")
    body = json.dumps({"instances": IMAGES[:1].tolist()}).encode()
    inputs = MESSAGES["ModelInferRequest"](model_name="digits", raw_input_contents=[np.zeros(64, np.uint8).tobytes()])
    inputs.inputs.add(name="images", datatype="UINT8", shape=[1, 8, 8, 1])

    def guess(draw: random.Random) -> str:
        wrong = [token[:-1], token + "x", token[1:], token.upper(), token.title(), token[::-1], "", " ", "null", "*", token * 2,
                 token.replace(" ", "\t"), token.replace(" ", ""), f'"{token}"', f"{token},x", f"x,{token}", token + "\x7f",
                 base64.b64encode(token.encode()).decode(), "".join(draw.choice(token) for _ in token)]  # fmt: skip
        return draw.choice(wrong)

    def predict(draw: random.Random, *headers: str, path: str = PREDICT, method: str = "POST") -> bool:
        return leaked(exchange(port, request(path, body, *headers, method=method)))

    def wrong_token(draw: random.Random) -> bool:
        return predict(draw, f"Authorization: Bearer {guess(draw)}")

    def other_scheme(draw: random.Random) -> bool:
        scheme = draw.choice(["Basic", "Digest", "Token", "Bearer:", "BearerX", "", "Negotiate"])
        return predict(draw, f"Authorization: {scheme} {token}".replace("  ", " "))

    def other_header(draw: random.Random) -> bool:
        name = draw.choice(
            ["X-Authorization", "Proxy-Authorization", "X-Token", "Cookie", "WWW-Authenticate", "Authorization_"]
        )
        return predict(draw, f"{name}: Bearer {token}")

    def in_address(draw: random.Random) -> bool:
        word = token.replace(" ", "%20")
        return predict(draw, path=f"{PREDICT}?{draw.choice(['token', 'access_token', 'authorization'])}={word}")

    def wrong_first(draw: random.Random) -> bool:
        return predict(draw, f"Authorization: Bearer {guess(draw)}", f"Authorization: Bearer {guess(draw)}")

    def trusted_proxy(draw: random.Random) -> bool:
        name = draw.choice(
            ["X-Forwarded-For", "X-Real-IP", "Forwarded", "X-Original-URL", "X-Rewrite-URL", "X-Forwarded-Host"]
        )
        return predict(draw, f"{name}: {draw.choice(['127.0.0.1', 'localhost', '/v2/health/live', 'for=127.0.0.1'])}")

    def open_path(draw: random.Random) -> bool:
        begins = draw.choice(["/v2/health/live", "/v2/health/ready", "/page.js", "/favicon.ico", "/"])
        ends = draw.choice(
            ["/../../../metrics", "/..%2f..%2f..%2fmetrics", ";/metrics", "%00/metrics", "/../metrics", "?/metrics"]
        )
        return predict(draw, path=begins + ends, method="GET")

    def spelled_path(draw: random.Random) -> bool:
        paths = [
            "//metrics",
            "/./metrics",
            "/%6detrics",
            "/METRICS",
            "/metrics/",
            "/metrics%20",
            "/metrics?x",
            "/v2",
            "/v2/",
        ]
        return predict(draw, path=draw.choice(paths), method="GET")

    def other_method(draw: random.Random) -> bool:
        return predict(draw, f"X-HTTP-Method-Override: {draw.choice(['GET', 'POST'])}",
                       method=draw.choice(["HEAD", "OPTIONS", "PUT", "TRACE", "GET"]))  # fmt: skip

    def smuggled(draw: random.Random) -> bool:
        inner = request("/metrics", b"", method="GET")
        outer = request("/v2/health/live", b"0\r\n\r\n" + inner, "Transfer-Encoding: chunked", method="POST")
        return leaked(exchange(port, outer.replace(b"Connection: close\r\n", b"")))

    def behind_an_open_one(draw: random.Random) -> bool:
        first = request("/v2/health/live", b"", method="GET").replace(b"Connection: close\r\n", b"")
        return leaked(
            exchange(port, first + request("/metrics", b"", f"Authorization: Bearer {guess(draw)}", method="GET"))
        )

    def rpc(metadata: list[tuple[str, Any]]) -> bool:
        try:
            channel.unary_unary(f"/{INFERENCE_SERVICE}/ModelInfer")(
                inputs.SerializeToString(), timeout=20, metadata=metadata
            )
        except (grpc.RpcError, ValueError):
            return False
        return True

    def grpc_wrong_token(draw: random.Random) -> bool:
        return rpc([("authorization", f"Bearer {guess(draw)}")])

    def grpc_other_place(draw: random.Random) -> bool:
        name = draw.choice(["x-authorization", "token", "authorization-bin", "cookie", "grpc-authorization"])
        value: Any = f"Bearer {token}"
        return rpc([(name, value.encode() if name.endswith("-bin") else value)])

    return [wrong_token, other_scheme, other_header, in_address, wrong_first, trusted_proxy, open_path, spelled_path, other_method,
            smuggled, behind_an_open_one, grpc_wrong_token, grpc_other_place]  # fmt: skip
