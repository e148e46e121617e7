"""Under load: a worker is killed, the server is told to leave, a new version appears, a bad one too."""

import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
import pytest
from tests.serve.conftest import IMAGES, OPTIONS, settings_for, write_version

from conveyor.infer.engines.engine import open_engine
from conveyor.infer.export import export
from conveyor.infer.load import from_options, load
from conveyor.serve.launcher import RunningServer, running_server
from conveyor.serve.protocols.protos import INFERENCE_SERVICE, MESSAGES

PREDICT = "/v1/models/digits:predict"
BODY = {"instances": IMAGES[:2].tolist()}


class Load:
    """A few threads that ask without pause; every answer is kept."""

    def __init__(self, url: str, threads: int = 4, new_connections: bool = False) -> None:
        self.answers: list[tuple[int, object]] = []
        self.unanswered: list[str] = []
        self._url, self._new = url, new_connections
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._stop.is_set():
            with httpx.Client(base_url=self._url, timeout=30, trust_env=False) as client:
                while not self._stop.is_set():
                    try:
                        response = client.post(PREDICT, json=BODY)
                    except (httpx.ConnectError, httpx.ConnectTimeout):
                        return  # the door is closed: this request was never accepted
                    except httpx.HTTPError as error:
                        self.unanswered.append(repr(error))
                        return
                    self.answers.append((response.status_code, response.json()))
                    if self._new:
                        break

    def wait_for(self, count: int) -> None:
        end = time.monotonic() + 60
        while len(self.answers) < count and time.monotonic() < end:
            time.sleep(0.01)
        assert len(self.answers) >= count, f"only {len(self.answers)} answers, {self.unanswered}"

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def check(self, *rights: np.ndarray) -> None:
        """All were answered, with one of the right answers."""
        assert self.unanswered == []
        assert {status for status, _ in self.answers} == {200}
        for _, document in self.answers:
            assert isinstance(document, dict)
            got = np.array(document["predictions"])
            assert any(np.allclose(got, right[:2], atol=1e-4) for right in rights)


@contextmanager
def under_load(url: str, **more: bool) -> Iterator[Load]:
    load_ = Load(url, **more)  # type: ignore[arg-type]
    try:
        yield load_
    finally:
        load_.stop()


def workers_of(server: RunningServer) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if any("conveyor.serve.engine_process" in word for word in child.cmdline())]


def metric(server: RunningServer, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics", trust_env=False).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_a_killed_worker_comes_back_and_no_request_is_hurt(model_folder: Path, expected: np.ndarray) -> None:
    with running_server(settings_for(model_folder, workers=2)) as server, under_load(server.url) as load_:
        load_.wait_for(20)
        before = workers_of(server)
        assert len(before) == 2
        os.kill(before[0].pid, signal.SIGKILL)
        load_.wait_for(len(load_.answers) + 40)
        until(lambda: metric(server, "conveyor_worker_restarts_total") == 1)
        assert metric(server, "conveyor_workers") == 2
        # A worker that hangs is like one that died; here it only sleeps for a moment and answers late.
        os.kill(before[1].pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(before[1].pid, signal.SIGCONT)
        load_.wait_for(len(load_.answers) + 20)
        load_.stop()
        load_.check(expected)


def test_sigterm_loses_nothing(model_folder: Path, expected: np.ndarray) -> None:
    settings = settings_for(model_folder, drain_delay=0.3, delay_us=20_000)
    with (
        running_server(settings) as server,
        under_load(server.url) as keeping,
        under_load(server.url, new_connections=True) as fresh,
    ):
        keeping.wait_for(20)
        fresh.wait_for(20)
        workers = workers_of(server)
        assert server.stop() == 0, server.log.read_text()
        keeping.stop()
        fresh.stop()
        keeping.check(expected)
        fresh.check(expected)
        assert " 0 lost" in server.log.read_text()
        assert not [worker for worker in workers if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE]


def start_calls(server: RunningServer, count: int, **more: str) -> tuple[grpc.Channel, list[Any]]:
    """gRPC calls under way."""
    channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
    call = channel.unary_unary(f"/{INFERENCE_SERVICE}/ModelInfer")
    request = MESSAGES["ModelInferRequest"](model_name="digits", raw_input_contents=[IMAGES[:1].tobytes()], **more)
    request.inputs.add(name="images", datatype="UINT8", shape=[1, 8, 8, 1])
    return channel, [call.future(request.SerializeToString(), timeout=30) for _ in range(count)]


def test_grpc_messages_count_as_bytes_in_memory(model_folder: Path) -> None:
    with running_server(
        settings_for(model_folder, delay_us=2_000_000, max_body=100_000, max_inflight=100_000)
    ) as server:
        channel, calls = start_calls(server, 8, id="x" * 30_000)
        with channel:
            codes = [call.code() for call in calls]
    assert codes.count(grpc.StatusCode.OK) == 3, codes
    assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 5, codes


def test_a_call_that_its_caller_cancelled_is_not_lost(model_folder: Path) -> None:
    with running_server(settings_for(model_folder, delay_us=2_000_000, max_batch=8)) as server:
        channel, calls = start_calls(server, 3)
        with channel:
            until(lambda: metric(server, "conveyor_queue_images") == 3)
            for call in calls:
                call.cancel()
            until(lambda: metric(server, 'conveyor_requests_total{outcome="cancelled",protocol="grpc-v2"}') == 3)
        assert server.stop() == 0, server.log.read_text()
        assert " 3 cancelled by their callers, 0 lost" in server.log.read_text()


def test_a_call_that_the_server_breaks_off_is_lost(model_folder: Path) -> None:
    with running_server(settings_for(model_folder, drain=1.0)) as server:
        (worker,) = workers_of(server)
        worker.suspend()
        channel, calls = start_calls(server, 1)
        with channel:
            until(lambda: metric(server, "conveyor_batch_images_count") == 1)
            code = server.stop()
            assert calls[0].code() != grpc.StatusCode.OK
        assert code == 1, server.log.read_text()
        assert " 1 lost" in server.log.read_text()


def test_workers_leave_when_the_server_is_killed(model_folder: Path) -> None:
    with running_server(settings_for(model_folder)) as server:
        workers = workers_of(server)
        server.process.kill()
        server.process.wait()
        until(lambda: not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers))


def test_a_new_version_is_swapped_in_and_a_bad_one_is_not(
    tmp_path: Path, model_folder: Path, expected: np.ndarray
) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(model_folder, folder)
    with running_server(settings_for(folder, poll=0.1)) as server, under_load(server.url) as load_:
        load_.wait_for(10)
        bad = tmp_path / "bad"
        shutil.copytree(folder / "1", bad)
        (bad / "model.onnx").write_bytes(b"not a model")
        bad.rename(folder / "2")
        until(lambda: metric(server, "conveyor_model_rejects_total") == 1)
        assert metric(server, 'conveyor_model{engine="onnxruntime",name="digits",version="1"}') == 1
        second = open_engine(load(write_version(folder, "003", seed=5)), "onnxruntime", threads=1)(IMAGES)
        assert not np.allclose(second, expected, atol=1e-3)
        until(lambda: metric(server, "conveyor_model_swaps_total") == 1)
        seen = len(load_.answers)
        load_.wait_for(seen + 20)
        load_.stop()
        load_.check(expected, second)
        _, last = load_.answers[-1]
        assert isinstance(last, dict)
        np.testing.assert_allclose(last["predictions"], second[:2], atol=1e-4)
        status = httpx.get(f"{server.url}/v1/models/digits", trust_env=False).json()["model_version_status"][0]
        assert status["version"] == "3"
        until(lambda: len(workers_of(server)) == 1)


def test_a_version_whose_engine_was_killed_is_tried_again(tmp_path: Path, model_folder: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(model_folder, folder)
    with running_server(settings_for(folder, poll=0.1)) as server:
        (first,) = workers_of(server)
        write_version(folder, "2", seed=5)
        until(lambda: len(workers_of(server)) > 1)
        for worker in workers_of(server):
            if worker.pid != first.pid:
                worker.kill()
        until(lambda: metric(server, "conveyor_model_rejects_total") == 1)
        assert metric(server, "conveyor_model_retry_seconds") == 1
        until(lambda: metric(server, "conveyor_model_swaps_total") == 1)
        until(lambda: metric(server, "conveyor_model_retry_seconds") == 0)
        assert "did not start (exit code -9)" in server.log.read_text()
        assert "next try in 1 s" in server.log.read_text()


def test_the_pauses_before_a_broken_version_is_tried_again_grow(tmp_path: Path, model_folder: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(model_folder, folder)
    with running_server(settings_for(folder, poll=0.1)) as server:
        bad = tmp_path / "bad"
        shutil.copytree(folder / "1", bad)
        (bad / "model.onnx").write_bytes(b"not a model")
        bad.rename(folder / "2")
        until(lambda: metric(server, "conveyor_model_retries_total") == 2)
        pauses = re.findall(r"not taken into service: .* is damaged.*; next try in (\d+) s", server.log.read_text())
        assert pauses == ["1", "2", "4"]
        assert metric(server, "conveyor_model_rejects_total") == 1, "it is one version"
        shutil.rmtree(folder / "2")
        until(lambda: metric(server, "conveyor_model_retry_seconds") == 0)


def test_a_version_from_another_run_is_served_under_the_same_name(tmp_path: Path, model_folder: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(model_folder, folder)
    with running_server(settings_for(folder, poll=0.1)) as server, under_load(server.url) as load_:
        export(from_options(OPTIONS.replace(seed=5), "another-run"), folder / "2", "onnx")
        until(lambda: metric(server, "conveyor_model_swaps_total") == 1)
        load_.wait_for(len(load_.answers) + 20)
        load_.stop()
        assert {status for status, _ in load_.answers} == {200}, "whoever asks by name must not notice"


def test_a_version_for_other_images_and_classes_is_told(tmp_path: Path, model_folder: Path) -> None:
    """Whoever sends arrays is refused from then on."""
    folder = tmp_path / "digits"
    shutil.copytree(model_folder, folder)
    with running_server(settings_for(folder, poll=0.1)) as server:
        export(from_options(OPTIONS.replace(image_size=16, num_classes=12), "wider"), folder / "2", "onnx")
        until(lambda: "and no longer of" in server.log.read_text())
        said = server.log.read_text()
    assert "its classes are others: 12, and they were 10" in said
    assert "it takes arrays of 16 x 16 x 1, and no longer of 8 x 8 x 1" in said


def test_a_folder_out_of_reach_is_told_once(tmp_path: Path, model_folder: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(model_folder, folder)
    with running_server(settings_for(folder, poll=0.05)) as server:
        folder.rename(tmp_path / "away")
        until(lambda: "there is nothing at" in server.log.read_text())
        time.sleep(0.5)  # ten further looks, of which none must be told
        assert server.log.read_text().count("there is nothing at") == 1
        assert metric(server, "conveyor_model_rejects_total") == 0, "no version was refused"
        assert httpx.post(f"{server.url}{PREDICT}", json=BODY, trust_env=False).status_code == 200
        (tmp_path / "away").rename(folder)
        write_version(folder, "2", seed=5)
        until(lambda: metric(server, "conveyor_model_swaps_total") == 1)


def test_a_server_that_cannot_load_says_why(tmp_path: Path) -> None:
    from conveyor.errors import UserError

    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no complete model"), running_server(settings_for(tmp_path / "empty")):
        pass
