"""The tutorial `docs/photographs.md`, every command as printed, on small data and weights that are made here."""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.data.small import make_cifar10
from tests.docs.test_docs import BLOCK, ROOT

from conveyor import models

PAGE = (ROOT / "docs" / "photographs.md").read_text()
STEPS = [(match["language"], match["mark"] or "", match["body"]) for match in BLOCK.finditer(PAGE)]


def test_every_command_is_run() -> None:
    marks = {mark for language, mark, _ in STEPS if language == "bash"}
    assert marks == {"tutorial", "served"}
    assert sum(language == "python" for language, _, _ in STEPS) == 2


@pytest.mark.conformance
@pytest.mark.timeout(2400)
def test_from_photographs_to_a_server(tmp_path: Path) -> None:
    make_cifar10(tmp_path / "data" / "cifar-10-batches-bin", per_file=10)
    cache = tmp_path / "cache" / "weights"
    cache.mkdir(parents=True)
    torch.manual_seed(0)
    network = models.build("efficientnet_lite0", padding="same", norm_epsilon=1e-3)
    save_file(network.state_dict(), cache / "tf_efficientnet_lite0.safetensors")
    env = {**os.environ, "CONVEYOR_CACHE": str(tmp_path / "cache"), "DATA_DIR": str(tmp_path / "data")}

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    outputs = ""
    for language, mark, body in STEPS:
        if language == "python":
            outputs += run(sys.executable, "-c", body)
            env.pop("DATA_DIR", None)  # from here on it is a person's own folder
        elif mark == "tutorial":
            outputs += "".join(run(sys.executable, "-m", *shlex.split(line)) for line in body.splitlines())
        elif mark == "served":
            answer = _served(body, tmp_path, env)
    assert (tmp_path / "answers.csv").read_text().startswith("file,label,probability")
    assert (tmp_path / "runs" / "photos" / "report.html").exists()
    labels = {folder.name for folder in (tmp_path / "photos").iterdir()}
    assert {one["label"] for one in answer["best"]} <= labels
    assert "accuracy" in outputs


def _served(body: str, folder: Path, env: dict[str, str]) -> dict[str, list[dict[str, str]]]:
    """The answer to the page's request; the port is a free one, and curl's part is done here."""
    serve, request = body.splitlines()
    words = shlex.split(serve.replace("8502", "0"))
    photo = (folder / request.partition("@")[2].split()[0]).read_bytes()
    with subprocess.Popen(
        [sys.executable, "-m", *words], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = next(found[0] for line in server.stdout if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
            path = shlex.split(request)[-1].partition("8502")[2]
            with urllib.request.urlopen(address + path, data=photo, timeout=120) as answer:
                return dict(json.load(answer))
        finally:
            server.terminate()
            server.wait(timeout=60)
