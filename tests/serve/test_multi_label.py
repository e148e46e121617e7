"""A multi-label model in service: all labels above their thresholds, and sigmoids where probabilities are asked for."""

import dataclasses
import io
from pathlib import Path

import httpx
import numpy as np
from PIL import Image
from tests.serve.conftest import IMAGES, OPTIONS, settings_for

from conveyor.infer.engines.engine import open_engine
from conveyor.infer.export import export
from conveyor.infer.load import from_options, load
from conveyor.serve.launcher import running_server


def test_the_labels_above_their_thresholds_are_answered(tmp_path: Path) -> None:
    made = from_options(OPTIONS.replace(task="multi-label"), "digits")
    thresholds = [0.0, *[0.5] * 8, 1.0]
    made = dataclasses.replace(made, spec={**made.spec, "thresholds": thresholds})
    export(made, tmp_path / "digits" / "1", "onnx")
    logits = open_engine(load(tmp_path / "digits"), "onnxruntime", threads=1)(IMAGES)
    expected = 1 / (1 + np.exp(-logits.astype(np.float64)))
    buffer = io.BytesIO()
    Image.fromarray(IMAGES[0, :, :, 0]).save(buffer, "PNG")
    with (
        running_server(settings_for(tmp_path / "digits"), ready_seconds=120) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
    ):
        answer = client.post("/classify", content=buffer.getvalue()).json()
        tensor = {"name": "images", "datatype": "UINT8", "shape": list(IMAGES.shape), "data": IMAGES.tolist()}
        asked = {"inputs": [tensor], "outputs": [{"name": "probabilities"}]}
        found = client.post("/v2/models/digits/infer", json=asked).json()
    named = {one["class"]: one["probability"] for one in answer["labels"]}
    assert set(named) == {int(one) for one in np.flatnonzero(expected[0] >= np.array(thresholds))}
    assert 0 in named
    assert 9 not in named
    assert all(abs(expected[0, number] - value) < 1e-5 for number, value in named.items())
    np.testing.assert_allclose(np.reshape(found["outputs"][0]["data"], expected.shape), expected, atol=1e-5)
