"""Clients that others wrote, as they are."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.serve.conftest import IMAGES

from conveyor.bench.peer_programs import peer_python
from conveyor.serve.launcher import RunningServer

CLIENT = Path(__file__).parent / "triton_client.py"


def test_tritons_client_gets_the_models_answer(server: RunningServer, expected: np.ndarray, tmp_path: Path) -> None:
    python = peer_python("triton")
    if python is None:
        pytest.skip("no environment with tritonclient: `make test` makes it")
    np.save(tmp_path / "images.npy", IMAGES)
    command = [python, str(CLIENT), str(server.port), str(server.grpc_port), "digits", str(tmp_path / "images.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert (len(answers["http"]["logits"]), len(answers["grpc"]["logits"])) == (12, 3)
    for protocol, found in answers.items():
        for way, logits in found["logits"].items():
            np.testing.assert_allclose(logits, expected, atol=1e-4, err_msg=f"{protocol}, {way}")
        for image, texts in enumerate(found["classes"]):
            best = np.argsort(-expected[image])[:2]
            assert [int(text.split(":")[1]) for text in texts] == best.tolist()
