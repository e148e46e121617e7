"""Broken messages in the binary protocols: every one gets a clear status, and the server goes on."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.conftest import IMAGES

from conveyor.serve.launcher import RunningServer
from conveyor.serve.protocols.protos import INFERENCE_SERVICE, MESSAGES, PREDICTION_SERVICE
from conveyor.serve.protocols.tensor_proto import to_proto

INVALID, MISSING = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
CLEAR = (grpc.StatusCode.OK, INVALID, MISSING, grpc.StatusCode.RESOURCE_EXHAUSTED)
METHODS = (
    (INFERENCE_SERVICE, "ModelInfer"),
    (INFERENCE_SERVICE, "ModelMetadata"),
    (INFERENCE_SERVICE, "ModelReady"),
    (INFERENCE_SERVICE, "ServerLive"),
    (PREDICTION_SERVICE, "Predict"),
)
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as opened:
        yield opened


def status(channel: grpc.Channel, service: str, method: str, content: bytes) -> tuple[grpc.StatusCode, str]:
    rpc = channel.unary_unary(f"/{service}/{method}")
    try:
        rpc(content, timeout=30)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def predict(**changes: Any) -> Any:
    """A right `Predict` request, with fields of its tensor changed."""
    request = MESSAGES["PredictRequest"]()
    request.model_spec.name = changes.pop("model", "digits")
    tensor = to_proto(IMAGES)
    for name, value in changes.items():
        if name == "dims":
            del tensor.tensor_shape.dim[:]
            for size in value:
                tensor.tensor_shape.dim.add(size=size)
        elif name not in ("input_name", "output"):
            setattr(tensor, name, value)
    request.inputs[changes.get("input_name", "images")].CopyFrom(tensor)
    request.output_filter.extend(changes.get("output", []))
    return request


def infer() -> Any:
    request = MESSAGES["ModelInferRequest"](model_name="digits", raw_input_contents=[IMAGES.tobytes()])
    request.inputs.add(name="images", datatype="UINT8", shape=list(IMAGES.shape))
    return request


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, grpc.StatusCode.OK),
        ({"model": "other"}, MISSING),
        ({"input_name": "pixels"}, INVALID),
        ({"output": ["secrets"]}, INVALID),
        ({"dtype": 0}, INVALID),
        ({"dtype": 8}, INVALID),
        ({"dtype": 9999}, INVALID),
        ({"dims": []}, INVALID),
        ({"dims": [-1, 8, 8, 1]}, INVALID),
        ({"dims": [6, 8, 8, 2]}, INVALID),
        ({"dims": [1, 384, 1, 1]}, INVALID),
        ({"dims": [1 << 40] * 4}, INVALID),
        ({"dims": [1] * 300}, INVALID),
        ({"tensor_content": b"short"}, INVALID),
        ({"tensor_content": b""}, INVALID),
        ({"tensor_content": bytes(400_000)}, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
    ids=str,
)
def test_predict_corpus(channel: grpc.Channel, changes: dict[str, Any], code: grpc.StatusCode) -> None:
    found, details = status(channel, PREDICTION_SERVICE, "Predict", predict(**changes).SerializeToString())
    assert found == code, details
    assert found == grpc.StatusCode.OK or details


@QUICK
@given(method=st.sampled_from(METHODS), content=st.binary(max_size=200))
def test_any_bytes_get_a_clear_status(channel: grpc.Channel, method: tuple[str, str], content: bytes) -> None:
    found, details = status(channel, *method, content)
    assert found in CLEAR, details


@QUICK
@given(data=st.data(), tensorflow=st.booleans())
def test_damaged_messages_get_a_clear_status(channel: grpc.Channel, data: st.DataObject, tensorflow: bool) -> None:
    """A right message, cut off or with some bytes changed: most of the damage is where the meaning is."""
    whole = bytearray((predict() if tensorflow else infer()).SerializeToString())
    head = len(whole) - IMAGES.size if not tensorflow else 60
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, head - 1) | st.integers(0, len(whole) - 1))
        whole[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.none() | st.integers(0, len(whole)))
    service, method = METHODS[4] if tensorflow else METHODS[0]
    found, details = status(channel, service, method, bytes(whole[:cut]))
    assert found in CLEAR, details


@QUICK
@given(data=st.data())
def test_damaged_binary_http_gets_an_answer_or_a_refusal(http: httpx.Client, data: st.DataObject) -> None:
    """The binary tensor extension: damaged head, body cut off or too long, a wrong length of the head."""
    tensor = {"name": "images", "datatype": "UINT8", "shape": list(IMAGES.shape)}
    head = bytearray(json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": IMAGES.size}}]}).encode())
    length = len(head) + data.draw(st.sampled_from([0, 0, -1, 1, 100]))
    if data.draw(st.booleans()):
        head[data.draw(st.integers(0, len(head) - 1))] = data.draw(st.integers(32, 126))
    body = bytes(head) + IMAGES.tobytes() + b"x" * data.draw(st.integers(0, 2))
    cut = data.draw(st.none() | st.integers(0, len(body)))
    response = http.post(
        "/v2/models/digits/infer", content=body[:cut], headers={"Inference-Header-Content-Length": str(length)}
    )
    assert response.status_code in (200, 400), response.text[:200]


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BOOL", "BYTES", "FP16", ""])
@pytest.mark.parametrize("binary", [True, False])
def test_the_right_bytes_under_a_wrong_type(channel: grpc.Channel, datatype: str, binary: bool) -> None:
    request = infer()
    request.inputs[0].datatype = datatype
    if not binary:
        del request.raw_input_contents[:]
        request.inputs[0].contents.uint_contents.extend(IMAGES.ravel().tolist())
    assert status(channel, INFERENCE_SERVICE, "ModelInfer", request.SerializeToString())[0] == INVALID


def test_values_out_of_range_are_refused(channel: grpc.Channel) -> None:
    for value in (256.0, -1.0, float("nan"), float("inf")):
        images = IMAGES.astype(np.float32)
        images[0, 0, 0, 0] = value
        request = predict()
        request.inputs["images"].CopyFrom(to_proto(images))
        found, details = status(channel, PREDICTION_SERVICE, "Predict", request.SerializeToString())
        assert (found, bool(details)) == (INVALID, True)


@pytest.mark.parametrize("length", [5_000, 100_000])
@pytest.mark.parametrize(
    ("field", "code"), [("model_name", MISSING), ("model_version", MISSING), ("datatype", INVALID)]
)
def test_long_words_are_not_sent_back(channel: grpc.Channel, field: str, code: grpc.StatusCode, length: int) -> None:
    """The library takes only a few kilobytes for the reason of a refusal."""
    request = infer()
    setattr(request.inputs[0] if field == "datatype" else request, field, "x" * length)
    found, details = status(channel, INFERENCE_SERVICE, "ModelInfer", request.SerializeToString())
    assert found == code, details[:200]
    assert len(details) < 500


def test_after_all_this_the_server_answers(channel: grpc.Channel, http: httpx.Client) -> None:
    assert status(channel, INFERENCE_SERVICE, "ModelInfer", infer().SerializeToString())[0] == grpc.StatusCode.OK
    lines = http.get("/metrics").text.splitlines()
    assert "conveyor_worker_restarts_total 0.0" in lines
    assert not [
        line
        for line in lines
        if line.startswith("conveyor_requests_total") and 'outcome="failed"' in line and not line.endswith(" 0.0")
    ]
