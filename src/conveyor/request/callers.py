"""One client of a server in each of the four protocols: a batch of images in, its logits out. No torch here."""

import dataclasses
import functools
import http.client
import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

PROTOCOLS = ("grpc", "grpc-tensorflow", "http", "http-tensorflow")
Call = Callable[[NDArray[np.uint8], float], NDArray[np.float32]]
"""`call(images, timeout in seconds) -> logits`; raises `Busy` or `CallFailed`."""


class Caller:
    """A `Call` with one connection, which `close` (or the end of a `with` statement) closes."""

    def __init__(self, call: Call, close: Callable[[], None]) -> None:
        self._call, self.close = call, close

    def __call__(self, images: NDArray[np.uint8], timeout: float) -> NDArray[np.float32]:
        return self._call(images, timeout)

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CallFailed(Exception):  # noqa: N818 - what happened to a call
    """The server refused, or its answer was unusable."""


class Busy(CallFailed):
    """The server is overloaded and asks to retry later."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """The model `name` at HOST:PORT, spoken to in one of the `PROTOCOLS`."""

    protocol: str
    host: str
    port: int
    name: str
    input_name: str = "images"
    token: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    """With `tls`, the file of certificates from which the server's must come; none: one that the system trusts."""


def make_caller(target: Target) -> Caller:
    """A caller of the model."""
    return (_grpc_caller if target.protocol.startswith("grpc") else _http_caller)(target)


def _grpc_caller(target: Target) -> Caller:
    import grpc

    from conveyor.serve.protocols.protos import INFERENCE_SERVICE, LARGE_MESSAGES, MESSAGES, PREDICTION_SERVICE
    from conveyor.serve.protocols.tensor_proto import from_proto, to_proto

    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
        *LARGE_MESSAGES,
    ]
    address = f"[{target.host}]:{target.port}" if ":" in target.host else f"{target.host}:{target.port}"
    if target.tls:
        trusted = grpc.ssl_channel_credentials(Path(target.tls_ca).read_bytes() if target.tls_ca else None)
        channel = grpc.secure_channel(address, trusted, options)
    else:
        channel = grpc.insecure_channel(address, options)
    tensorflow = target.protocol == "grpc-tensorflow"
    service, method = (PREDICTION_SERVICE, "Predict") if tensorflow else (INFERENCE_SERVICE, "ModelInfer")
    rpc = channel.unary_unary(
        f"/{service}/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=MESSAGES[f"{method}Response"].FromString,
    )
    metadata = [("authorization", f"Bearer {target.token}")] if target.token else None

    def call(images: NDArray[np.uint8], timeout: float) -> NDArray[np.float32]:
        request = MESSAGES[f"{method}Request"]()
        if tensorflow:
            request.model_spec.name, request.model_spec.signature_name = target.name, "serving_default"
            request.inputs[target.input_name].CopyFrom(to_proto(images))
        else:
            request.model_name = target.name
            request.inputs.add(name=target.input_name, datatype="UINT8", shape=list(images.shape))
            request.outputs.add(name="logits")
            request.raw_input_contents.append(images.tobytes())
        try:
            answer = rpc(request, timeout=timeout, metadata=metadata, wait_for_ready=True)
        except grpc.RpcError as error:
            # The library has the same code for a message that is too large: a retry would not help that one.
            busy = error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" not in error.details()
            raise (Busy if busy else CallFailed)(f"{error.code().name}: {error.details()}") from None
        if tensorflow:
            return _checked(from_proto(answer.outputs["logits"]), len(images))
        return _checked(
            np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(list(answer.outputs[0].shape)), len(images)
        )

    return Caller(call, channel.close)


def _http_caller(target: Target) -> Caller:
    import orjson

    model = quote(target.name, safe="")
    kind: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
    if target.tls:
        kind = functools.partial(http.client.HTTPSConnection, context=ssl.create_default_context(cafile=target.tls_ca))
    local = threading.local()
    opened: list[http.client.HTTPConnection] = []
    always = {"Authorization": f"Bearer {target.token}"} if target.token else {}

    def connection(timeout: float) -> http.client.HTTPConnection:
        """This thread's own connection, kept open from call to call."""
        found: http.client.HTTPConnection | None = getattr(local, "connection", None)
        if found is None:
            found = local.connection = kind(target.host, target.port, timeout=timeout)
            opened.append(found)
        if found.sock is not None:
            found.sock.settimeout(timeout)
        else:
            found.timeout = timeout
        return found

    def post(
        path: str, content: Sequence[bytes | memoryview], more: dict[str, str], timeout: float
    ) -> tuple[bytes, Any]:
        """POST the parts of `content`, one behind the other."""
        channel = connection(timeout)
        length = {"Content-Length": str(sum(len(part) for part in content))}
        try:
            channel.request("POST", path, content, {**always, **length, **more})
            response = channel.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            channel.close()  # the rest of this answer must not be read as the next one
            raise CallFailed(f"{type(error).__name__}: {error}") from None
        if response.status != 200:
            wrong = Busy if response.status == 429 else CallFailed
            raise wrong(f"{response.status}: {answer[:200].decode(errors='replace')}")
        return answer, response.headers

    def call_v2(images: NDArray[np.uint8], timeout: float) -> NDArray[np.float32]:
        raw = np.ascontiguousarray(images).data.cast("B")
        tensor = {
            "name": target.input_name,
            "datatype": "UINT8",
            "shape": list(images.shape),
            "parameters": {"binary_data_size": len(raw)},
        }
        outputs = [{"name": "logits", "parameters": {"binary_data": True}}]
        head = orjson.dumps({"inputs": [tensor], "outputs": outputs})
        more = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
        answer, headers = post(f"/v2/models/{model}/infer", (head, raw), more, timeout)
        length = int(headers["Inference-Header-Content-Length"])
        shape = orjson.loads(answer[:length])["outputs"][0]["shape"]
        return _checked(np.frombuffer(answer, "<f4", offset=length).reshape(shape), len(images))

    def call_tensorflow(images: NDArray[np.uint8], timeout: float) -> NDArray[np.float32]:
        content = orjson.dumps({"instances": images}, option=orjson.OPT_SERIALIZE_NUMPY)
        answer, _ = post(f"/v1/models/{model}:predict", (content,), {"Content-Type": "application/json"}, timeout)
        return _checked(np.array(orjson.loads(answer)["predictions"], np.float32), len(images))

    def close() -> None:
        for each in opened:
            each.close()

    return Caller(call_v2 if target.protocol == "http" else call_tensorflow, close)


def _checked(logits: NDArray[Any], count: int) -> NDArray[np.float32]:
    """One row of finite numbers for each image, or the answer counts as failed."""
    if logits.ndim != 2 or len(logits) != count or not np.isfinite(logits).all():
        raise CallFailed(f"the answer to {count} images is {list(logits.shape)} or not finite")
    return logits.astype(np.float32, copy=False)
