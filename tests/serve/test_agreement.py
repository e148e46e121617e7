"""A new version is compared with the answers to the last requests before it is taken into service."""

import io
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.serve.conftest import IMAGES, settings_for, write_version
from tests.serve.test_lifecycle import metric, until

from conveyor.errors import UserError
from conveyor.serve import agreement
from conveyor.serve.agreement import Recent
from conveyor.serve.launcher import running_server
from conveyor.serve.settings import ServeSettings


def test_another_network_is_refused_and_the_same_one_is_taken(tmp_path: Path, model_folder: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(model_folder, folder)
    with (
        running_server(settings_for(folder, poll=0.1, swap_agreement=0.98, swap_requests=5)) as server,
        httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client,
    ):
        buffer = io.BytesIO()
        Image.fromarray(IMAGES[0, :, :, 0]).save(buffer, "PNG")
        for _ in range(3):
            assert client.post("/classify", content=buffer.getvalue()).status_code == 200
        assert client.post("/v1/models/digits:predict", json={"instances": IMAGES.tolist()}).status_code == 200
        write_version(folder, "2", seed=5)
        until(lambda: metric(server, "conveyor_model_disagreements_total") == 1)
        assert metric(server, 'conveyor_swap_agreement{version="2"}') < 0.98
        assert metric(server, 'conveyor_model{engine="onnxruntime",name="digits",version="1"}') == 1
        states = client.get("/v1/models/digits").json()["model_version_status"]
        assert [(one["version"], one["state"]) for one in states] == [("1", "AVAILABLE"), ("2", "END")]
        assert "last 5 images" in states[1]["status"]["error_message"]
        only = client.get("/v1/models/digits/versions/2").json()["model_version_status"]
        assert [one["state"] for one in only] == ["END"]
        refused = client.post("/v1/models/digits/versions/2:predict", json={"instances": IMAGES[:1].tolist()})
        assert refused.status_code == 404
        assert "--swap-agreement asks for 98 %" in refused.json()["error"]
        write_version(folder, "3", seed=0)
        until(lambda: metric(server, "conveyor_model_swaps_total") == 1)
        assert metric(server, 'conveyor_swap_agreement{version="3"}') == 1.0
        states = client.get("/v1/models/digits").json()["model_version_status"]
        assert [(one["version"], one["state"]) for one in states] == [("3", "AVAILABLE")]
        assert metric(server, "conveyor_model_disagreements_total") == 1, "it was not tried again"


def test_without_a_request_there_is_nothing_to_compare(tmp_path: Path, model_folder: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(model_folder, folder)
    with running_server(settings_for(folder, poll=0.1, swap_agreement=0.98)) as server:
        write_version(folder, "2", seed=5)
        until(lambda: metric(server, "conveyor_model_swaps_total") == 1)


def test_what_is_kept_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    recent = Recent(3)
    recent.keep([b"a", b"b", b"c", b"d"], ["1", "2", "3", "4"])
    assert [label for _, label in recent._kept] == ["2", "3", "4"]
    monkeypatch.setattr(agreement, "MOST_BYTES", 250)
    batch = np.zeros((4, 10, 10), np.uint8)
    recent = Recent(100)
    recent.keep(list(batch), ["x"] * 4)
    assert len(recent) == 2
    assert all(isinstance(sent, np.ndarray) and sent.base is None for sent, _ in recent._kept)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_is_above_0_and_up_to_1(share: float) -> None:
    with pytest.raises(UserError, match="swap-agreement"):
        ServeSettings(path="x", swap_agreement=share).check()
