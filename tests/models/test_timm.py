"""Weights of timm give timm's answers, from its own files alone; timm runs in an environment of its own (`make peers`)."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from conveyor.infer.load import from_options
from conveyor.options import Options

HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("CONVEYOR_PEERS", HERE.parent.parent / ".peers")) / "timm" / "bin" / "python"
NAMES = (
    "efficientnet_b0.ra_in1k", "tf_efficientnet_b0.in1k", "tf_efficientnet_b1.ap_in1k", "mobilenetv3_large_100.ra_in1k",
    "tf_mobilenetv3_small_100.in1k", "tf_efficientnet_lite0.in1k", "efficientnet_lite0.ra_in1k", "mobilenetv2_100.ra_in1k",
    "resnet18.a1_in1k", "resnext50_32x4d.a1_in1k",
)  # fmt: skip

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"timm is not installed in {PYTHON.parent.parent}: make peers"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("timm")
    command = [str(PYTHON), str(HERE / "timm_weights.py"), str(folder), *NAMES]
    env = {
        **os.environ,
        "CONVEYOR_PEERS": str(PYTHON.parents[2].absolute()),
        "PYTHONPATH": str(HERE.parent / "peers_path"),
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_timms_files_give_timms_answers(made: Path, name: str) -> None:
    """Nothing is named but the file: network, epsilon, padding and preparation follow from what lies beside it."""
    folder = made / name
    loaded = from_options(
        Options().replace(data="imagenet", synthetic_data=True, weights=str(folder / "model.safetensors")), name
    )
    expected = torch.load(folder / "expected.pt", weights_only=True)
    assert loaded.module is not None
    with torch.no_grad():
        torch.testing.assert_close(loaded.module(expected["x"]), expected["y"], rtol=1e-5, atol=1e-5)
    stated = json.loads((folder / "config.json").read_text())["pretrained_cfg"]
    seen = loaded.preprocessing
    assert (seen.image_size, seen.interpolation) == (stated["input_size"][-1], stated["interpolation"])
    assert seen.resize == int(seen.image_size / stated["crop_pct"])
