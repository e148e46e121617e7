"""The client side: many processes, all protocols, failures that are not hidden."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.serve.conftest import IMAGES

from conveyor.errors import UserError
from conveyor.infer.load import load
from conveyor.options import Options
from conveyor.serve.callers import PROTOCOLS, CallFailed, make_caller
from conveyor.serve.client import LoadSettings, export_and_request, run_load
from conveyor.serve.launcher import Running


def load_settings(server: Running, **changes: object) -> LoadSettings:
    protocol = str(changes.get("protocol", "grpc"))
    port = server.port if protocol.startswith("http") else server.grpc_port
    return LoadSettings(port=port or 0, name="digits", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_gives_the_models_answer(server: Running, expected: np.ndarray, protocol: str) -> None:
    port = server.port if protocol.startswith("http") else server.grpc_port
    with make_caller(protocol, "127.0.0.1", port or 0, "digits") as call:
        np.testing.assert_allclose(call(IMAGES, 30), expected, atol=1e-4)
    with make_caller(protocol, "127.0.0.1", port or 0, "other") as call, pytest.raises(CallFailed):
        call(IMAGES, 30)


def test_load_counts_every_image_of_every_client(server: Running) -> None:
    report = run_load(
        load_settings(server, clients=3, batch_size=2, num_images=7, use_async=True, timeout=60.0), IMAGES
    )
    assert report.ok, report.failures
    assert (report.requests, report.images) == (3 * 4, 3 * 8)
    assert report.latency is not None
    assert report.latency.count == 12
    assert any(line.startswith("average throughput:") and line.endswith("samples/sec") for line in report.lines())


def test_load_for_a_time(server: Running) -> None:
    report = run_load(load_settings(server, clients=2, num_images=1, seconds=0.5, timeout=60.0), IMAGES)
    assert report.ok, report.failures
    assert report.requests > 2, "the time counts, not the number of images"
    assert report.seconds >= 0.5
    assert report.cpu_seconds > 0


def test_a_failed_answer_is_reported(server: Running) -> None:
    report = run_load(load_settings(server, clients=2, num_images=2), IMAGES[:, :4])
    assert not report.ok
    assert "INVALID_ARGUMENT" in report.failures[0]
    assert "FAILED" in report.lines()[-1]


def test_back_pressure_is_obeyed(server: Running) -> None:
    """The queue holds 64 images: 6 clients with 40 each at once are told to wait, and all succeed in the end."""
    report = run_load(
        load_settings(server, clients=6, batch_size=40, num_images=120, use_async=True, timeout=60.0), IMAGES
    )
    assert report.ok, report.failures
    assert report.images == 6 * 120


def test_wrong_settings_are_named(server: Running) -> None:
    with pytest.raises(UserError, match="did you mean 'grpc'"):
        load_settings(server, protocol="grpcc").check()
    with pytest.raises(UserError, match="--clients"):
        load_settings(server, clients=0).check()


@pytest.mark.parametrize("batch_size", [8, 3])
def test_export_serve_request_in_one_go(tmp_path: Path, batch_size: int) -> None:
    said: list[str] = []
    options = Options().replace(model="resnet8", data="digits", micro_batch_size=8, generated_data=batch_size == 8)
    folder = tmp_path / "resnet8_test"
    (folder / "001").mkdir(parents=True)
    (folder / "001" / "old").write_text("an older export")
    report = export_and_request(
        options,
        folder,
        name="resnet8_test",
        host="0.0.0.0",
        batch_size=batch_size,
        clients=2,
        num_images=10,
        say=said.append,
    )
    assert report.ok, report.failures
    assert report.requests == 2 * -(-10 // batch_size)
    exported = load(folder)
    assert exported.spec["input"]["shape"] == [8, 8, 8, 1]
    assert not (folder / "001" / "old").exists()
    assert any("weights are random" in line for line in said)


def test_request_from_the_command_line(
    server: Running, conveyor: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    from PIL import Image

    Image.fromarray(IMAGES[0, ..., 0]).save(tmp_path / "digit.png")
    (tmp_path / "text.png").write_text("no image")
    code, out, _ = conveyor("request", server.url, tmp_path / "digit.png")
    assert code == 0
    assert out.count("%") == 5
    code, out, _ = conveyor("request", server.url, tmp_path / "digit.png", tmp_path / "text.png")
    assert code == 1
    assert "FAILED" in out
    code, out, _ = conveyor(
        "request", server.url, "--grpc-port", server.grpc_port, "--clients", 1, "--num-images", 3, "--json"
    )
    assert code == 0
    assert json.loads(out)["images"] == 3
    code, _, err = conveyor("request", "http://127.0.0.1:1")
    assert code == 2
    assert "does not answer" in err
