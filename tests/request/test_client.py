"""The client side: many processes, all protocols, failures that are not hidden."""

import contextlib
import dataclasses
import http.server
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import httpx
import numpy as np
import psutil
import pytest
import yaml
from tests.serve.conftest import IMAGES, settings_for

from conveyor.commands.request import _described
from conveyor.errors import UserError
from conveyor.infer.export import export
from conveyor.infer.load import from_options, load
from conveyor.options import Options
from conveyor.options.coerce import checked
from conveyor.request.callers import PROTOCOLS, Busy, CallFailed, Target, make_caller
from conveyor.request.client import LoadSettings, engine_processes, export_and_request, patience, run_load
from conveyor.serve.launcher import RunningServer, running_server
from conveyor.serve.metrics import Metrics

SPEC = Path(__file__).parents[2] / "compat" / "tensorflow2" / "benchmarks.yml"


def load_settings(server: RunningServer, **changes: object) -> LoadSettings:
    protocol = str(changes.get("protocol", "grpc"))
    port = server.port if protocol.startswith("http") else server.grpc_port
    return LoadSettings(port=port or 0, name="digits", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_gives_the_models_answer(server: RunningServer, expected: np.ndarray, protocol: str) -> None:
    port = server.port if protocol.startswith("http") else server.grpc_port
    with make_caller(Target(protocol, "127.0.0.1", port or 0, "digits")) as call:
        np.testing.assert_allclose(call(IMAGES, 30), expected, atol=1e-4)
    with make_caller(Target(protocol, "127.0.0.1", port or 0, "other")) as call, pytest.raises(CallFailed):
        call(IMAGES, 30)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("count", [65, 5000], ids=["more than the queue holds", "more bytes than accepted"])
def test_a_request_that_is_too_large_is_not_sent_again(server: RunningServer, protocol: str, count: int) -> None:
    port = server.port if protocol.startswith("http") else server.grpc_port
    images = np.zeros((count, 8, 8, 1), np.uint8)
    with make_caller(Target(protocol, "127.0.0.1", port or 0, "digits")) as call, pytest.raises(CallFailed) as caught:
        call(images, 30)
    assert not isinstance(caught.value, Busy), "it would be sent again and again until the time is up"


def test_load_counts_every_image_of_every_client(server: RunningServer) -> None:
    report = run_load(
        load_settings(server, clients=3, batch_size=2, num_images=7, use_async=True, timeout=60.0), IMAGES
    )
    assert report.ok, report.failures
    assert (report.requests, report.images) == (3 * 4, 3 * 8)
    assert report.latency is not None
    assert report.latency.count == 12
    assert any(line.startswith("average throughput:") and line.endswith("samples/sec") for line in report.lines())


def test_load_for_a_time(server: RunningServer) -> None:
    report = run_load(load_settings(server, clients=2, num_images=1, seconds=0.5, timeout=60.0), IMAGES)
    assert report.ok, report.failures
    assert report.requests > 2, "the time counts, not the number of images"
    assert report.seconds >= 0.5
    assert report.cpu_seconds > 0


def test_load_at_a_rate(server: RunningServer) -> None:
    """Requests are due at even distances: 2 clients of 20 in all a second."""
    report = run_load(load_settings(server, clients=2, num_images=10, rate=20.0, timeout=60.0), IMAGES)
    assert report.ok, report.failures
    assert report.requests == 20
    assert report.seconds >= 0.95 * 19 / 20
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="--rate"):
            checked(load_settings(server, rate=wrong))


def test_a_late_request_has_waited_since_it_was_due(server: RunningServer) -> None:
    """All requests of one client are due at once and it sends them one by one: together they waited for much longer than it took."""
    report = run_load(load_settings(server, clients=1, num_images=60, rate=1e6, timeout=60.0), IMAGES)
    assert report.ok, report.failures
    assert report.latency is not None
    assert report.latency.count * report.latency.average > 5 * 1000 * report.seconds


def test_the_benchmark_finds_each_latency_of_the_first_client(
    server: RunningServer, capfd: pytest.CaptureFixture[str]
) -> None:
    pattern = yaml.safe_load(SPEC.read_text())["tf2_resnet50_serving_latency"]["data"]["latency"]["regexp"]
    report = run_load(load_settings(server, clients=2, num_images=5, verbose=True, timeout=60.0), IMAGES)
    assert report.ok, report.failures
    said = capfd.readouterr().err
    found = [float(value) for value in re.findall(pattern, said)]
    assert len(found) == 5
    assert f"min {min(found):.3f} ms, max {max(found):.3f} ms" in said


def test_a_client_that_waits_for_each_answer_gets_all_cores() -> None:
    assert engine_processes(1, use_async=False) == 1
    assert engine_processes(1, use_async=True) is engine_processes(2, use_async=False) is None


def test_a_request_may_wait_for_all_that_was_sent_before_it() -> None:
    """Sixteen clients with eight batches of 32 under way are 4,096 images, minutes of work for a few cores."""
    assert patience(16, 32, use_async=True) >= 16 * 8 * 32
    assert patience(16, 32, use_async=False) >= 16 * 32
    assert patience(1, 1, use_async=False) >= 60


def test_a_failed_answer_is_reported(server: RunningServer) -> None:
    report = run_load(load_settings(server, clients=2, num_images=2), IMAGES[:, :4])
    assert not report.ok
    assert "INVALID_ARGUMENT" in report.failures[0]
    assert "FAILED" in report.lines()[-1]


def test_back_pressure_is_obeyed(server: RunningServer) -> None:
    """The queue holds 64 images: 6 clients with 40 each at once are told to wait, and all succeed in the end."""
    report = run_load(
        load_settings(server, clients=6, batch_size=40, num_images=120, use_async=True, timeout=60.0), IMAGES
    )
    assert report.ok, report.failures
    assert report.images == 6 * 120


def images_answered(server: RunningServer) -> int:
    counted = re.search(r"^conveyor_images_total (\S+)$", httpx.get(f"{server.url}/metrics").text, re.MULTILINE)
    return int(float(counted[1])) if counted else 0


def test_a_killed_client_is_a_failure_and_not_waited_for(server: RunningServer, tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    order = {
        **dataclasses.asdict(load_settings(server, clients=3, seconds=3.0)),
        "images": str(tmp_path / "images.npy"),
    }
    command, before = [sys.executable, "-m", "conveyor.request.clients"], images_answered(server)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdin is not None
            parent.stdin.write(json.dumps(order))
            parent.stdin.close()
            parent.stdin = None
            end = time.monotonic() + 60
            while images_answered(server) < before + 10 and time.monotonic() < end:  # 3 of them to warm up
                time.sleep(0.01)
            psutil.Process(parent.pid).children()[1].kill()
            out, _ = parent.communicate(timeout=30)
        finally:
            parent.kill()
    reports = json.loads(out)["clients"]
    assert [len(report["failures"]) for report in reports] == [0, 1, 0]
    assert "exit code -9" in reports[1]["failures"][0]
    assert reports[0]["images"] > 0


def test_wrong_settings_are_named(server: RunningServer) -> None:
    with pytest.raises(UserError, match="did you mean 'grpc'"):
        checked(load_settings(server, protocol="grpcc"))
    with pytest.raises(UserError, match="--clients"):
        checked(load_settings(server, clients=0))


@pytest.mark.parametrize("batch_size", [8, 3])
def test_export_serve_request_in_one_go(tmp_path: Path, batch_size: int) -> None:
    said: list[str] = []
    options = Options().replace(model="resnet8", data="digits", micro_batch_size=8, generated_data=batch_size == 8)
    folder = tmp_path / "resnet8_test"
    (folder / "001").mkdir(parents=True)
    (folder / "001" / "old").write_text("an older export")
    export(from_options(options.replace(seed=9), "other"), folder / "002", "torch")
    report = export_and_request(
        options,
        folder,
        LoadSettings(port=0, name="resnet8_test", host="0.0.0.0", batch_size=batch_size, clients=2, num_images=10),
        say=said.append,
    )
    assert report.ok, report.failures
    assert report.requests == 2 * -(-10 // batch_size)
    assert "serving resnet8_test version 1 " in " ".join(said), "what was just exported, not what lies beside it"
    exported = load(folder / "001")
    assert exported.spec["input"]["shape"] == [8, 8, 8, 1]
    assert not (folder / "001" / "old").exists()
    assert any("weights are random" in line for line in said)


def test_request_from_the_command_line(
    server: RunningServer, conveyor: Callable[..., tuple[int, str, str]], tmp_path: Path
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


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("http://127.0.0.1:99999",), "no address"),
        (("{url}", "--name", "typo"), r"refuses \(404\): there is no model 'typo' here"),
        (("{url}", "--data", "rael"), "did you mean real"),
        (("nowhere", "--protocol", "htp"), "did you mean 'http'"),
        (("nowhere", "--timeout", "-1"), "--timeout is -1; give a number above 0"),
        (("nowhere", "--clients", "0"), "--clients is 0; the smallest value is 1"),
    ],
)
def test_mistakes_of_the_command_line_are_one_sentence(
    server: RunningServer, conveyor: Callable[..., tuple[int, str, str]], words: tuple[str, ...], reason: str
) -> None:
    code, _, err = conveyor("request", *(word.format(url=server.url) for word in words))
    assert code == 2
    assert re.search(reason, err)
    assert len(err.strip().splitlines()) == 1, err


@contextlib.contextmanager
def answering(document: Any) -> Iterator[str]:
    """The address of a server that answers everything with `document`: JSON, or bytes as they are."""
    content = document if isinstance(document, bytes) else json.dumps(document).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{other.server_port}"
        finally:
            other.shutdown()


def test_a_server_of_another_kind_is_told_apart(conveyor: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "photograph.png").write_bytes(b"x")
    with answering(b"<html>") as url:
        code, out, _ = conveyor("request", url, tmp_path / "photograph.png")
        assert (code, "FAILED: the answer 200 is not of this program" in out) == (1, True)
        code, _, err = conveyor("request", url, "--name", "x")
        assert (code, "does not describe its model" in err) == (2, True)


IMAGES_8 = {"name": "x", "inputs": [{"name": "images", "datatype": "UINT8", "shape": [-1, 8, 8, 1]}]}


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ({"best": 7}, 1, "is not of this program"),
        ({"best": [{"label": "a", "probability": "x"}]}, 1, "is not of this program"),
        ({"best": [{"label": "\x1b[31mred", "probability": 0.5}]}, 0, r"\x1b[31mred 50.0 %"),
        ({"error": "\x1b[31mno"}, 1, r"FAILED: \x1b[31mno"),
    ],
)
def test_an_answer_of_another_kind_is_told_apart_and_escaped(
    conveyor: Callable[..., tuple[int, str, str]], tmp_path: Path, answer: dict[str, Any], code: int, said: str
) -> None:
    """What a server sends must not steer the terminal."""
    (tmp_path / "photograph.png").write_bytes(b"x")
    with answering(answer) as url:
        found, out, err = conveyor("request", url, tmp_path / "photograph.png")
    assert (found, said in out, err) == (code, True, "")


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": {"a": 1}},
        {"inputs": [7]},
        *(
            {"inputs": [{"shape": shape}]}
            for shape in (None, "abc", [-1], [-1, -1, -1, 3], [1, "a", 2, 3], [-1, 1 << 40, 8, 1])
        ),
    ],
)
def test_a_model_that_is_not_of_images_is_one_sentence(
    conveyor: Callable[..., tuple[int, str, str]], changes: dict[str, Any]
) -> None:
    with answering(IMAGES_8 | changes) as url:
        code, _, err = conveyor("request", url, "--name", "x", "--num-images", 1)
    assert code == 2
    assert re.fullmatch(r"conveyor: error: the server('s model)? does not .*\n", err), err


def test_a_token_that_no_header_can_carry_is_one_sentence(
    conveyor: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photograph.png").write_bytes(b"x")
    monkeypatch.setenv("CONVEYOR_TOKEN", "Schl\u00fcssel")
    with answering({"best": []}) as url:
        code, _, err = conveyor("request", url, tmp_path / "photograph.png")
    assert (code, "no single line of ASCII" in err) == (2, True)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_names_with_special_letters_can_be_asked_for(model_folder: Path, protocol: str) -> None:
    with running_server(settings_for(model_folder, name="my run: 50 %?")) as named:
        port = named.port if protocol.startswith("http") else named.grpc_port
        with make_caller(Target(protocol, "127.0.0.1", port or 0, "my run: 50 %?")) as call:
            assert call(IMAGES, 30).shape == (len(IMAGES), 10)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_an_address_of_the_newer_internet_protocol(
    model_folder: Path, conveyor: Callable[..., tuple[int, str, str]], protocol: str
) -> None:
    with running_server(settings_for(model_folder, host="::1")) as server:
        words = ["--grpc-port", server.grpc_port, "--protocol", protocol, "--clients", 1, "--num-images", 2, "--json"]
        code, out, err = conveyor("request", server.url, *words)
    assert code == 0, err
    assert json.loads(out)["images"] == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the Linux kernel")
def test_a_client_that_is_killed_leaves_no_process_behind(model_folder: Path) -> None:
    command = [sys.executable, "-m", "conveyor", "request", str(model_folder), "--seconds", "100", "--timeout", "60"]
    started = subprocess.Popen(
        [*command, "--engine", "onnxruntime"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    client = psutil.Process(started.pid)
    everybody: list[psutil.Process] = []

    def count(module: str) -> int:
        nonlocal everybody
        everybody = client.children(recursive=True)
        return sum(module in process.cmdline() for process in everybody)

    try:
        end = time.monotonic() + 120
        while count("conveyor.request.clients") < 3 and time.monotonic() < end:
            time.sleep(0.05)
        assert count("conveyor.request.clients") == 3, "two clients and the one that started them"
        assert count("conveyor.serve") == 1
    finally:
        started.kill()
        started.wait()
    _, left = psutil.wait_procs(everybody, timeout=60)
    assert not left


@pytest.mark.parametrize("name", ['a "quoted" name', "back\\slash", "née", "two\nlines"])
def test_the_name_of_the_model_is_learnt_from_the_metrics(name: str) -> None:
    """As Prometheus escapes it."""
    metrics = Metrics()
    metrics.model.labels(name, "1", "torch").set(1)
    asked = []

    def get(path: str) -> httpx.Response:
        asked.append(path)
        document = {"inputs": [{"shape": [-1, 8, 8, 1]}]}
        answer = {"content": metrics.text()} if path == "/metrics" else {"json": document}
        return httpx.Response(200, request=httpx.Request("GET", f"http://x{path}"), **answer)

    assert _described(SimpleNamespace(get=get), None)["inputs"]
    assert unquote(asked[1]) == f"/v2/models/{name}"
