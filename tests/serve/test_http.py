import base64
import io
import json

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.serve.conftest import IMAGES

from conveyor.serve.launcher import RunningServer


def photograph(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0]).save(buffer, "PNG")
    return buffer.getvalue()


def v2(images: np.ndarray, **more: object) -> dict[str, object]:
    return {
        "inputs": [
            {"name": "images", "datatype": "UINT8", "shape": list(images.shape), "data": images.ravel().tolist()}
        ],
        **more,
    }


def close(answer: object, expected: np.ndarray) -> None:
    np.testing.assert_allclose(np.array(answer, np.float32).reshape(expected.shape), expected, atol=1e-4)


def test_health_and_metadata(http: httpx.Client) -> None:
    assert http.get("/v2/health/live").status_code == http.get("/v2/health/ready").status_code == 200
    assert http.get("/v2").json()["name"] == "conveyor"
    described = http.get("/v2/models/digits").json()
    assert described["inputs"] == [{"name": "images", "datatype": "UINT8", "shape": [-1, 8, 8, 1]}]
    assert [output["name"] for output in described["outputs"]] == ["logits", "probabilities"]
    assert http.get("/v2/models/digits/ready").json()["ready"] is True
    assert http.get("/v2/models/digits/versions/1").status_code == 200
    assert http.get("/v1/models/digits").json()["model_version_status"][0]["state"] == "AVAILABLE"


def test_v2_json_gives_the_models_own_answer(http: httpx.Client, expected: np.ndarray) -> None:
    answer = http.post("/v2/models/digits/infer", json=v2(IMAGES, id="seven")).json()
    assert (answer["id"], answer["model_version"]) == ("seven", "1")
    outputs = {output["name"]: output for output in answer["outputs"]}
    close(outputs["logits"]["data"], expected)
    np.testing.assert_allclose(np.array(outputs["probabilities"]["data"]).reshape(6, 10).sum(1), 1, atol=1e-5)


def test_v2_binary_both_ways(http: httpx.Client, expected: np.ndarray) -> None:
    tensor = {"name": "images", "datatype": "UINT8", "shape": [6, 8, 8, 1], "parameters": {"binary_data_size": 384}}
    head = json.dumps(
        {"inputs": [tensor], "outputs": [{"name": "logits", "parameters": {"binary_data": True}}]}
    ).encode()
    response = http.post(
        "/v2/models/digits/versions/1/infer",
        content=head + IMAGES.tobytes(),
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    length = int(response.headers["Inference-Header-Content-Length"])
    assert json.loads(response.content[:length])["outputs"][0]["parameters"] == {"binary_data_size": 240}
    close(np.frombuffer(response.content[length:], "<f4"), expected)


def test_v2_takes_photographs_and_float_pixels(http: httpx.Client, expected: np.ndarray) -> None:
    encoded = [photograph(image) for image in IMAGES[:2]]
    raw = b"".join(len(each).to_bytes(4, "little") + each for each in encoded)
    tensor = {"name": "images", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    answer = http.post(
        "/v2/models/digits/infer", content=head + raw, headers={"Inference-Header-Content-Length": str(len(head))}
    ).json()
    close(answer["outputs"][0]["data"], expected[:2])
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 8, 8, 1], "data": IMAGES[0].astype(float).tolist()}
    close(http.post("/v2/models/digits/infer", json={"inputs": [tensor]}).json()["outputs"][0]["data"], expected[:1])


def test_v2_classification(http: httpx.Client, expected: np.ndarray) -> None:
    wanted = [{"name": "logits", "parameters": {"classification": 2}}]
    output = http.post("/v2/models/digits/infer", json=v2(IMAGES[:1], outputs=wanted)).json()["outputs"][0]
    assert output["datatype"] == "BYTES"
    assert output["shape"] == [1, 2]
    assert int(output["data"][0].split(":")[1]) == expected[0].argmax()


def test_tensorflow_rows_columns_and_base64(http: httpx.Client, expected: np.ndarray) -> None:
    path = "/v1/models/digits:predict"
    close(http.post(path, json={"instances": IMAGES.tolist()}).json()["predictions"], expected)
    close(
        http.post(path, json={"signature_name": "serving_default", "inputs": IMAGES.tolist()}).json()["outputs"],
        expected,
    )
    close(
        http.post(path, json={"instances": [{"images": image.tolist()} for image in IMAGES]}).json()["predictions"],
        expected,
    )
    text = [base64.b64encode(photograph(image)).decode() for image in IMAGES]
    for instances in ([{"b64": each} for each in text], [{"image_bytes": {"b64": each}} for each in text]):
        close(
            http.post("/v1/models/digits/versions/1:predict", json={"instances": instances}).json()["predictions"],
            expected,
        )


def test_more_images_than_a_batch_holds(http: httpx.Client, expected: np.ndarray) -> None:
    many = np.concatenate([IMAGES] * 4)
    close(
        http.post("/v1/models/digits:predict", json={"instances": many.tolist()}).json()["predictions"],
        np.concatenate([expected] * 4),
    )


def test_classify_says_the_five_best(http: httpx.Client, expected: np.ndarray) -> None:
    answer = http.post("/classify", content=photograph(IMAGES[0])).json()
    assert [one["class"] for one in answer["best"]] == np.argsort(-expected[0], kind="stable")[:5].tolist()
    assert answer["best"][0]["label"] == str(expected[0].argmax())
    assert answer["best"][0]["probability"] >= answer["best"][4]["probability"] > 0


def test_metrics_count_what_happened(http: httpx.Client) -> None:
    def value(name: str) -> float:
        lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith(name)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    before = value("conveyor_images_total"), value('conveyor_requests_total{outcome="ok",protocol="http-tensorflow"}')
    http.post("/v1/models/digits:predict", json={"instances": IMAGES[:3].tolist()})
    after = value("conveyor_images_total"), value('conveyor_requests_total{outcome="ok",protocol="http-tensorflow"}')
    assert (after[0] - before[0], after[1] - before[1]) == (3, 1)
    assert value('conveyor_model{engine="onnxruntime",name="digits",version="1"}') == 1
    assert value("conveyor_workers") == 1


def test_unknown_things_are_not_found(http: httpx.Client) -> None:
    for path in ("/nowhere", "/v2/models/other", "/v2/models/digits/versions/9", "/v1/models/other"):
        response = http.get(path)
        assert response.status_code == 404
        assert "error" in response.json()
    assert http.post("/v2/models/other/infer", json=v2(IMAGES)).status_code == 404
    assert http.get("/v2/models/digits/infer").status_code == 405


def test_ready_file_tells_the_addresses(server: RunningServer) -> None:
    assert server.url == f"http://127.0.0.1:{server.port}"
    assert server.grpc_port not in (None, 0, server.port)
    assert (server.name, server.version) == ("digits", "1")


@pytest.mark.parametrize(("length", "headers", "status"), [(10, {"Content-Encoding": "gzip"}, 415), (400_000, {}, 413)])
def test_compressed_and_large_bodies_are_refused(
    http: httpx.Client, length: int, headers: dict[str, str], status: int
) -> None:
    response = http.post("/classify", content=b"x" * length, headers=headers)
    assert response.status_code == status
    assert http.get("/v2/health/live").status_code == 200


def test_the_addresses_are_described(http: httpx.Client) -> None:
    found = http.get("/openapi.json").json()
    assert found["openapi"] == "3.1.0"
    for path, methods in found["paths"].items():
        for method in methods:
            assert http.request(method, path).status_code not in (404, 405), path
    answer = http.post("/classify", content=photograph(IMAGES[0])).json()
    schemas = found["components"]["schemas"]
    assert set(schemas["Answer"]["required"]) == set(answer)
    assert set(schemas["Best"]["required"]) == set(answer["best"][0])


@pytest.mark.parametrize("kind", ["image/png", "application/x-www-form-urlencoded"])
def test_a_photograph_at_the_wrong_address_is_told_the_right_one(http: httpx.Client, kind: str) -> None:
    for path in ("/", "/predict", "/v2"):
        answer = http.post(path, content=photograph(IMAGES[0]), headers={"Content-Type": kind})
        assert answer.status_code in (404, 405)
        assert "send photographs to /classify" in answer.json()["error"]
    for path in ("/v2/models/digits/infer", "/v1/models/digits:predict"):
        answer = http.post(path, content=photograph(IMAGES[0]), headers={"Content-Type": kind})
        assert answer.status_code == 400
        assert "send it to /classify" in answer.json()["error"]


def test_classify_says_what_it_takes(http: httpx.Client) -> None:
    form = http.post("/classify", files={"file": photograph(IMAGES[0])})
    assert form.status_code == 415
    assert "--data-binary @photo.jpg" in form.json()["error"]
    assert ":predict" in http.post("/classify", json={"instances": []}).json()["error"]
    assert "this address takes POST" in http.get("/classify").json()["error"]


def test_the_phases_of_an_answer_are_told(http: httpx.Client) -> None:
    def phases(answer: httpx.Response) -> dict[str, float]:
        return {
            name: float(value)
            for name, value in (one.split(";dur=") for one in answer.headers["Server-Timing"].split(", "))
        }

    def totals(name: str) -> list[float]:
        lines = http.get("/metrics").text.splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith(name + "{")]

    names = ["receive", "decode", "queue", "infer", "encode"]
    before = sum(totals("conveyor_phase_seconds_sum"))
    answer = http.post("/classify", content=photograph(IMAGES[0]))
    assert list(phases(answer)) == names
    assert all(value >= 0 for value in phases(answer).values())
    whole = answer.json()["milliseconds"]
    assert sum(phases(answer).values()) == pytest.approx(whole, rel=0, abs=len(names) * 0.0005)  # as they are rounded
    counted = 1000 * (sum(totals("conveyor_phase_seconds_sum")) - before)
    assert whole <= counted + 1e-6
    many = http.post("/v1/models/digits:predict", json={"instances": IMAGES.repeat(8, 0).tolist()})  # several batches
    assert list(phases(many)) == names
    assert all(value >= 0 for value in phases(many).values())
    assert len(totals("conveyor_phase_seconds_count")) == len(names)
    assert sum(totals("conveyor_phase_seconds_sum")) <= sum(totals("conveyor_request_seconds_sum"))
