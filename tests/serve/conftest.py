"""A tiny exported model and a server for it, shared by the tests of this folder."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from conveyor.infer.engines.engine import open_engine
from conveyor.infer.export import export
from conveyor.infer.load import from_options, load
from conveyor.options import Options
from conveyor.serve.launcher import RunningServer, running_server
from conveyor.serve.settings import ServeSettings

OPTIONS = Options().replace(model="resnet8", data="digits")
IMAGES = np.random.default_rng(3).integers(0, 256, (6, 8, 8, 1), dtype=np.uint8)


def write_version(folder: Path, number: str, seed: int = 0) -> Path:
    """An ONNX export with weights from `seed` as version `number` of the model `folder`."""
    export(from_options(OPTIONS.replace(seed=seed), "digits"), folder / number, "onnx")
    return folder / number


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "digits"
    write_version(folder, "1")
    return folder


@pytest.fixture(scope="session")
def expected(model_folder: Path) -> np.ndarray:
    """The model's own logits of IMAGES."""
    return open_engine(load(model_folder), "onnxruntime", threads=1)(IMAGES)


def settings_for(folder: Path, **changes: object) -> ServeSettings:
    """Small, quick, on free ports."""
    plain = ServeSettings(
        path=str(folder),
        port=0,
        grpc_port=0,
        engine="onnxruntime",
        workers=1,
        threads=1,
        poll=0.0,
        drain_delay=0.0,
        timeout=20.0,
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def server(model_folder: Path) -> Iterator[RunningServer]:
    settings = settings_for(model_folder, max_body=300_000, max_pixels=4_000_000, queue=64, max_batch=8)
    with running_server(settings, ready_seconds=120) as started:
        yield started


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        yield client
