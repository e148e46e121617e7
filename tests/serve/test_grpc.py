import io
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image
from tests.serve.conftest import IMAGES

from conveyor.serve.errors import Refused
from conveyor.serve.launcher import RunningServer
from conveyor.serve.protocols.protos import HEALTH_SERVICE, INFERENCE_SERVICE, MESSAGES, PREDICTION_SERVICE
from conveyor.serve.protocols.tensor_proto import from_proto, to_proto


@pytest.fixture
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as opened:
        yield opened


def call(channel: grpc.Channel, service: str, method: str, request: Any, answer: str = "") -> Any:
    rpc = channel.unary_unary(
        f"/{service}/{method}",
        request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
        response_deserializer=MESSAGES[answer or f"{method}Response"].FromString,
    )
    return rpc(request, timeout=30)


def infer_request(**more: Any) -> Any:
    request = MESSAGES["ModelInferRequest"](**{"model_name": "digits", **more})
    request.inputs.add(name="images", datatype="UINT8", shape=list(IMAGES.shape))
    return request


def test_wire_format_is_the_public_one() -> None:
    """Field numbers and types, byte by byte, against messages written by hand from the public definitions."""
    request = MESSAGES["ModelInferRequest"](model_name="m", id="i", raw_input_contents=[b"xy"])
    request.inputs.add(name="images", datatype="UINT8", shape=[1, 2])
    assert (
        request.SerializeToString()
        == b"\x0a\x01m\x1a\x01i\x2a\x13\x0a\x06images\x12\x05UINT8\x1a\x02\x01\x02\x3a\x02xy"
    )
    predict = MESSAGES["PredictRequest"]()
    predict.model_spec.name = "m"
    predict.model_spec.version.value = 3
    predict.inputs["a"].dtype = 4
    predict.inputs["a"].tensor_shape.dim.add(size=5)
    assert (
        predict.SerializeToString()
        == b"\x0a\x07\x0a\x01m\x12\x02\x08\x03\x12\x0d\x0a\x01a\x12\x08\x08\x04\x12\x04\x12\x02\x08\x05"
    )


def test_tensors_survive_the_wire() -> None:
    for dtype in (np.float32, np.float64, np.uint8, np.int32, np.int64):
        array = np.arange(6).reshape(2, 3).astype(dtype)
        again = from_proto(to_proto(array))
        assert again.dtype == dtype
        assert again.tolist() == array.tolist()
    repeated = MESSAGES["TensorProto"](dtype=1, float_val=[2.5])
    repeated.tensor_shape.dim.add(size=3)
    assert from_proto(repeated).tolist() == [2.5] * 3
    repeated.tensor_shape.dim.add(size=1 << 21)
    with pytest.raises(Refused, match="1 values"):  # a few bytes must not become gigabytes
        from_proto(repeated)


def test_health_and_metadata(channel: grpc.Channel) -> None:
    assert call(channel, INFERENCE_SERVICE, "ServerLive", MESSAGES["ServerLiveRequest"]()).live
    assert call(channel, INFERENCE_SERVICE, "ServerReady", MESSAGES["ServerReadyRequest"]()).ready
    assert call(channel, INFERENCE_SERVICE, "ModelReady", MESSAGES["ModelReadyRequest"](name="digits")).ready
    assert call(channel, INFERENCE_SERVICE, "ServerMetadata", MESSAGES["ServerMetadataRequest"]()).name == "conveyor"
    described = call(channel, INFERENCE_SERVICE, "ModelMetadata", MESSAGES["ModelMetadataRequest"](name="digits"))
    assert list(described.inputs[0].shape) == [-1, 8, 8, 1]
    assert call(channel, HEALTH_SERVICE, "Check", MESSAGES["HealthCheckRequest"](), "HealthCheckResponse").status == 1


def test_v2_raw_and_listed_contents(channel: grpc.Channel, expected: np.ndarray) -> None:
    raw = infer_request(id="nine")
    raw.raw_input_contents.append(IMAGES.tobytes())
    listed = infer_request()
    listed.inputs[0].contents.uint_contents.extend(IMAGES.ravel().tolist())
    for request in (raw, listed):
        answer = call(channel, INFERENCE_SERVICE, "ModelInfer", request)
        assert [output.name for output in answer.outputs] == ["logits", "probabilities"]
        np.testing.assert_allclose(
            np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(6, 10), expected, atol=1e-4
        )
    assert call(channel, INFERENCE_SERVICE, "ModelInfer", raw).id == "nine"


def test_tensorflow_predict(channel: grpc.Channel, expected: np.ndarray) -> None:
    for name, values in (("input", IMAGES), ("images", IMAGES.astype(np.float32))):
        request = MESSAGES["PredictRequest"]()
        request.model_spec.name, request.model_spec.signature_name = "digits", "serving_default"
        request.inputs[name].CopyFrom(to_proto(values))
        answer = call(channel, PREDICTION_SERVICE, "Predict", request)
        np.testing.assert_allclose(from_proto(answer.outputs["logits"]), expected, atol=1e-4)
        assert answer.model_spec.version.value == 1


def wrong_requests() -> list[tuple[str, Any, grpc.StatusCode]]:
    invalid, missing = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    whole = {"raw_input_contents": [IMAGES.tobytes()]}
    found: list[tuple[str, Any, grpc.StatusCode]] = [
        ("no input", MESSAGES["ModelInferRequest"](model_name="digits"), invalid),
        ("no contents", infer_request(), invalid),
        ("short contents", infer_request(raw_input_contents=[b"123"]), invalid),
        ("two contents", infer_request(raw_input_contents=[b"1", b"2"]), invalid),
        ("other model", infer_request(model_name="other", **whole), missing),
        ("other version", infer_request(model_version="99", **whole), missing),
        ("too large", infer_request(raw_input_contents=[bytes(400_000)]), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("no protobuf", b"\xff\xff\xff\xff", invalid),
    ]
    for label, name, datatype, shape in (
        ("other name", "pixels", "UINT8", [6, 8, 8, 1]),
        ("other type", "images", "COMPLEX", [6, 8, 8, 1]),
        ("negative shape", "images", "UINT8", [-1, 8, 8, 1]),
        ("huge shape", "images", "UINT8", [1 << 31] * 4),
        ("no shape", "images", "UINT8", []),
        ("other size", "images", "UINT8", [1, 384, 1, 1]),
        ("many strings", "images", "BYTES", [1 << 31]),
    ):
        request = MESSAGES["ModelInferRequest"](model_name="digits", **whole)
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        found.append((label, request, invalid))
    buffer = io.BytesIO()
    Image.fromarray(IMAGES[0, ..., 0]).save(buffer, "PNG")
    request = MESSAGES["ModelInferRequest"](model_name="digits")
    tensor = request.inputs.add(name="images", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.extend([buffer.getvalue()] * 2)
    found.append(("more photographs than the shape says", request, invalid))
    return found


def test_wrong_requests_get_a_clear_status_and_the_server_goes_on(channel: grpc.Channel) -> None:
    for label, request, code in wrong_requests():
        with pytest.raises(grpc.RpcError) as caught:
            call(channel, INFERENCE_SERVICE, "ModelInfer", request)
        assert caught.value.code() == code, f"{label}: {caught.value.details()}"
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, PREDICTION_SERVICE, "Predict", MESSAGES["PredictRequest"]())
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, INFERENCE_SERVICE, "Nothing", MESSAGES["ServerLiveRequest"](), "ServerLiveResponse")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert call(channel, INFERENCE_SERVICE, "ServerReady", MESSAGES["ServerReadyRequest"]()).ready
