"""The gRPC side: the Open Inference Protocol, TensorFlow Serving's Predict, and the standard health check."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from conveyor.serve.deadline import Limit
from conveyor.serve.errors import Refused, TooSlow
from conveyor.serve.model import ServedModel
from conveyor.serve.protocols import http_v2
from conveyor.serve.protocols.arrays import as_images
from conveyor.serve.protocols.arrivals import Arrivals
from conveyor.serve.protocols.protos import (
    HEALTH_SERVICE,
    INFERENCE_SERVICE,
    LARGE_MESSAGES,
    MESSAGES,
    PREDICTION_SERVICE,
)
from conveyor.serve.protocols.tensor_proto import from_proto, strings_of, to_proto
from conveyor.serve.service import Asked, Service

SERVING, NOT_SERVING = 1, 2
MOST_ARRIVING = 32
"""Messages that each service receives at the same time; the library does not report those that are half received."""
IDLE_SECONDS = 300.0
"""After so long without a call a connection is closed. Else one stays open for ever, also when its other side is gone,
and as many as there are descriptors shut everyone else out. A client connects anew by itself at its next call."""
_CONTENTS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
_logger = logging.getLogger(__name__)
Method = Callable[[Any, Limit], Awaitable[Any]]
"""(message, the time of the call) -> answer."""


def make_server(service: Service) -> Any:
    """A gRPC server with all methods; not yet bound to a port."""
    settings = service.settings
    options = [
        ("grpc.max_receive_message_length", settings.max_body),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", max(1, round(settings.timeout * 1000))),
        ("grpc.max_connection_idle_ms", round(IDLE_SECONDS * 1000)),
        *LARGE_MESSAGES,
        ("grpc.max_concurrent_streams", max(64, settings.queue)),
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=2 * max(64, settings.queue))
    rpc = Rpc(service)
    server.add_generic_rpc_handlers(
        (
            rpc.handlers(
                INFERENCE_SERVICE,
                ServerLive=rpc.server_live,
                ServerReady=rpc.server_ready,
                ModelReady=rpc.model_ready,
                ServerMetadata=rpc.server_metadata,
                ModelMetadata=rpc.model_metadata,
                ModelInfer=rpc.model_infer,
            ),
            rpc.handlers(PREDICTION_SERVICE, Predict=rpc.predict),
            rpc.handlers(HEALTH_SERVICE, Check=rpc.check),
        )
    )
    return server


class Rpc:
    """The methods; each takes a message and returns one, `Refused` becomes a status."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def handlers(self, service_name: str, **methods: Method) -> Any:
        """A generic handler for a service whose methods have messages called NAMERequest and NAMEResponse."""
        table = {}
        arriving = Arrivals(MOST_ARRIVING)  # one for each service, so that health checks are answered under any load
        for name, method in methods.items():
            request = {"Check": "HealthCheckRequest"}.get(name, f"{name}Request")
            # On the wire a stream of one message is the same as a message; but here we decide when it is read.
            table[name] = grpc.stream_unary_rpc_method_handler(
                self._guarded(method, MESSAGES[request], arriving, open_to_all=service_name == HEALTH_SERVICE),
                response_serializer=lambda message: message.SerializeToString(),
            )
        return grpc.method_handlers_generic_handler(service_name, table)

    def _guarded(
        self, method: Method, message: Any, arriving: Arrivals, *, open_to_all: bool
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        async def call(_: Any, context: Any) -> Any:
            if self._service.refuses_calls_at is not None:
                self._service.refuses_calls_at = time.monotonic()
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping: ask another one")
            wanted, most = context.time_remaining(), self._service.settings.timeout
            if not open_to_all and not self._allowed(context):
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a bearer token is needed in 'authorization'")
            try:
                async with Limit(most if wanted is None else min(wanted, most)) as limit:
                    content = await _arrived(context, arriving, limit)
                    with self._service.holding(len(content)):
                        return await method(message.FromString(content), limit)
            except DecodeError:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not a message of this method")
            except Refused as error:
                await context.abort(error.code, str(error))
            except grpc.aio.AbortError:
                raise
            except Exception:
                _logger.exception("an error of the server itself")
                await context.abort(grpc.StatusCode.INTERNAL, "the server failed; its log says why")

        return call

    def _allowed(self, context: Any) -> bool:
        if self._service.settings.token is None:
            return True
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        return self._service.allows(str(given).encode())

    async def server_live(self, request: Any, limit: Limit) -> Any:
        return MESSAGES["ServerLiveResponse"](live=True)

    async def server_ready(self, request: Any, limit: Limit) -> Any:
        return MESSAGES["ServerReadyResponse"](ready=self._service.ready)

    async def model_ready(self, request: Any, limit: Limit) -> Any:
        self._service.model(request.name, request.version)
        return MESSAGES["ModelReadyResponse"](ready=self._service.ready)

    async def server_metadata(self, request: Any, limit: Limit) -> Any:
        return MESSAGES["ServerMetadataResponse"](**http_v2.server_metadata())

    async def model_metadata(self, request: Any, limit: Limit) -> Any:
        return MESSAGES["ModelMetadataResponse"](
            **http_v2.model_metadata(self._service.model(request.name, request.version))
        )

    async def check(self, request: Any, limit: Limit) -> Any:
        return MESSAGES["HealthCheckResponse"](status=SERVING if self._service.ready else NOT_SERVING)

    async def model_infer(self, request: Any, limit: Limit) -> Any:
        with self._service.request("grpc-v2", limit, request.model_name, request.model_version) as asked:
            if len(request.inputs) != 1 or request.inputs[0].name not in http_v2.INPUT_NAMES:
                raise Refused(f"there must be one input, called {http_v2.INPUT!r}")
            images = await self._v2_images(asked, request)
            logits = await self._service.infer(asked, images)
            return _v2_answer(asked.model, request, logits)

    async def _v2_images(self, asked: Asked, request: Any) -> NDArray[np.uint8]:
        tensor, raw = request.inputs[0], request.raw_input_contents
        if len(raw) > 1:
            raise Refused(f"{len(raw)} raw contents for one input")

        def listed(datatype: str) -> list[bytes] | NDArray[Any]:
            if datatype == "BYTES":
                return list(tensor.contents.bytes_contents)
            if datatype not in _CONTENTS:
                raise Refused(f"numbers of type {datatype} are sent as raw contents")
            return np.array(getattr(tensor.contents, _CONTENTS[datatype]))

        first = raw[0] if raw else None
        return await http_v2.images_of(self._service, asked, tensor.datatype, list(tensor.shape), first, listed)

    async def predict(self, request: Any, limit: Limit) -> Any:
        spec = request.model_spec
        version = str(spec.version.value) if spec.HasField("version") else ""
        with self._service.request("grpc-tensorflow", limit, spec.name, version) as asked:
            model = asked.model
            if len(request.inputs) != 1:
                raise Refused("there must be one input, called 'images' or 'input'")
            name, tensor = next(iter(request.inputs.items()))
            if name not in (*http_v2.INPUT_NAMES, "image_bytes"):
                raise Refused(f"there is no input {name[:60]!r}: it is called 'images' or 'input'")
            photographs = strings_of(tensor)
            if photographs is not None:
                images = await self._service.decode(asked, photographs)
            else:
                images = as_images(from_proto(tensor), model.preprocessing.image_shape)
            logits = await self._service.infer(asked, images)
            response = MESSAGES["PredictResponse"]()
            wanted = set(request.output_filter) or {http_v2.LOGITS}
            for output in wanted:
                if output not in (http_v2.LOGITS, http_v2.PROBABILITIES):
                    raise Refused(f"there is no output {output[:60]!r}: they are 'logits' and 'probabilities'")
                values = logits if output == http_v2.LOGITS else model.probabilities(logits)
                response.outputs[output].CopyFrom(to_proto(values.astype(np.float32)))
            response.model_spec.name = model.name
            response.model_spec.signature_name = "serving_default"
            if model.version.isdecimal():
                response.model_spec.version.value = int(model.version)
            return response


async def _arrived(context: Any, arriving: Arrivals, limit: Limit) -> bytes:
    """The message of a call, read when a place is free; an error when it does not arrive in time."""
    try:
        async with arriving.place():
            content = await context.read()
    except asyncio.CancelledError:
        if limit.up:
            raise TooSlow(f"the request did not arrive within {limit.seconds:g} seconds") from None
        raise
    if content is grpc.aio.EOF:
        raise Refused("the call has no message")
    return bytes(content)


def _v2_answer(model: ServedModel, request: Any, logits: NDArray[np.float32]) -> Any:
    wanted_ones = [
        {"name": output.name, "parameters": {key: _parameter(value) for key, value in output.parameters.items()}}
        for output in request.outputs
    ]
    response = MESSAGES["ModelInferResponse"](model_name=model.name, model_version=model.version, id=request.id)
    for about, _, values in http_v2.outputs(model, {"outputs": wanted_ones}, logits):
        response.outputs.add(**about)
        response.raw_output_contents.append(http_v2.raw_bytes(values))
    return response


def _parameter(value: Any) -> Any:
    """The one value that an InferParameter holds."""
    for name in ("bool_param", "int64_param", "string_param", "double_param", "uint64_param"):
        if value.HasField(name):
            return getattr(value, name)
    return None
