"""Hostile requests, clients through everything that happens to a server, and attempts to pass the token."""

import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from tests.conformance import hostile, reliability
from tests.serve.conftest import IMAGES, settings_for, write_version
from tests.serve.test_lifecycle import Load, metric, until, workers_of

from conveyor.infer.engines.engine import open_engine
from conveyor.infer.load import load
from conveyor.request.callers import Target, make_caller
from conveyor.serve.launcher import RunningServer, running_server

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800), pytest.mark.xdist_group("attack-server")]
REQUESTS, ATTEMPTS, CLIENTS, SECONDS = 10_000, 1300, 32, 60.0
FAILED = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DATA_LOSS)
MOST_GROWTH = 48 << 20
"""Bytes that a server may grow by between the first fifth of the hostile requests and the last."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacked") / "digits"
    write_version(folder, "1")
    return folder


def answers_of(folder: Path) -> np.ndarray:
    return open_engine(load(folder), "onnxruntime", threads=1)(IMAGES)


class GoodClient:
    """Asks without pause over HTTP and gRPC in turn; every answer has to come and to be right."""

    def __init__(self, server: RunningServer, right: np.ndarray) -> None:
        self.answers, self.wrong, self.slowest = 0, list[str](), 0.0
        self._server, self._right = server, right
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        assert self._server.grpc_port is not None
        ports = {"http": self._server.port, "grpc": self._server.grpc_port}
        while not self._leave.is_set():
            for protocol, port in ports.items():
                start = time.monotonic()
                try:
                    with make_caller(Target(protocol, "127.0.0.1", port, "digits")) as call:
                        if not np.allclose(call(IMAGES, 20), self._right, atol=1e-4):
                            self.wrong.append(f"{protocol}: other numbers")
                except Exception as error:
                    self.wrong.append(f"{protocol}: {error!r}")
                self.answers += 1
                self.slowest = max(self.slowest, time.monotonic() - start)
            time.sleep(0.05)

    def stop(self) -> None:
        self._leave.set()
        self._thread.join(60)


def test_hostile_requests_hurt_nobody(model: Path) -> None:
    settings = settings_for(model, timeout=3.0, max_body=300_000, max_pixels=4_000_000, queue=64, max_batch=8)
    outcomes: Counter[str] = Counter()
    bad: list[str] = []
    memory: list[int] = []
    with running_server(settings) as server:
        assert server.grpc_port is not None
        process = psutil.Process(server.process.pid)
        kinds = {**hostile.http_kinds(server.port), **hostile.grpc_kinds(server.grpc_port)}
        assert len(kinds) == 50
        good = GoodClient(server, answers_of(model))

        def one(number: int) -> None:
            name = list(kinds)[number % len(kinds)]
            found = kinds[name](random.Random(number))
            outcomes[str(found)] += 1
            if found in FAILED or (isinstance(found, int) and found >= 500):
                bad.append(f"{name} {number}: {found}")
            if number % (REQUESTS // 10) == 0:
                memory.append(process.memory_info().rss)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(REQUESTS)))
        good.stop()
        grown = process.memory_info().rss - memory[2]
        assert metric(server, "conveyor_worker_restarts_total") == 0
        assert server.stop() == 0, server.log.read_text()[-3000:]
        words = server.log.read_text()
    assert not bad, bad[:20]
    assert not good.wrong, good.wrong[:20]
    assert good.answers > 20
    assert grown < MOST_GROWTH, [round(each / 2**20) for each in memory]
    assert "Traceback" not in words, words[-5000:]
    assert len(words.splitlines()) < 100, "repeated lines are summed up"
    refused = ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items(), key=lambda pair: -pair[1])[:6])
    reliability.write(
        "requests",
        f"{REQUESTS} of {len(kinds)} kinds ({refused}): no 5xx; memory {grown / 2**20:+.0f} MiB after the first 2,000; "
        f"{good.answers} good requests, all answered",
    )


def test_clients_through_everything(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(model, folder)
    first = answers_of(folder)
    settings = settings_for(folder, workers=2, poll=0.2, queue=512, drain_delay=1.0)
    with running_server(settings) as server:
        started = time.monotonic()
        clients = [Load(server.url, threads=CLIENTS // 2)]
        rpc = [GrpcLoad(server) for _ in range(CLIENTS // 2)]

        def wait(share: float) -> None:
            time.sleep(max(0.0, started + share * SECONDS - time.monotonic()))

        wait(0.15)
        workers_of(server)[0].kill()
        wait(0.35)
        shutil.copytree(folder / "1", tmp_path / "bad")
        (tmp_path / "bad" / "model.onnx").write_bytes(b"not a model")
        (tmp_path / "bad").rename(folder / "2")
        until(lambda: metric(server, "conveyor_model_rejects_total") == 1)
        wait(0.55)
        second = answers_of(write_version(folder, "3", seed=5))
        until(lambda: metric(server, "conveyor_model_swaps_total") == 1)
        until(lambda: metric(server, "conveyor_worker_restarts_total") >= 1)
        wait(1.0)
        before = [each.unanswered for each in (*clients, *rpc)]
        assert not any(before), before
        for each in rpc:
            each.stopping.set()
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(60)
        for load_ in (*clients, *rpc):
            load_.stop()
        words = server.log.read_text()
    assert code == 0, words[-3000:]
    # Nobody gave up waiting for an answer, so a call that ended at its deadline had waited for a connection.
    assert " 0 cancelled by their callers, 0 lost" in words, words[-3000:]
    answered = sum(len(each.answers) for each in (*clients, *rpc))
    for each in (*clients, *rpc):
        each.check(first, second)
    reliability.write("clients", f"{answered} requests answered, 0 lost, exit code 0")


class GrpcLoad:
    """One gRPC client that asks without pause; once the server is told to stop, a refused call was never accepted.

    Nor was one that waits for a connection until its deadline: it begins when the server has closed the last one.
    """

    def __init__(self, server: RunningServer) -> None:
        assert server.grpc_port is not None
        self.answers: list[np.ndarray] = []
        self.unanswered: list[str] = []
        self.stopping = threading.Event()
        self._leave = threading.Event()
        self._caller = make_caller(Target("grpc", "127.0.0.1", server.grpc_port, "digits"))
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        with self._caller as call:
            while not self._leave.is_set():
                try:
                    self.answers.append(call(IMAGES[:2], 30))
                except Exception as error:
                    refused = "UNAVAILABLE" in str(error) or "DEADLINE_EXCEEDED" in str(error)
                    if not (self.stopping.is_set() and refused):
                        self.unanswered.append(repr(error))
                    return

    def stop(self) -> None:
        self._leave.set()
        self._thread.join(60)

    def check(self, *rights: np.ndarray) -> None:
        assert self.unanswered == []
        for got in self.answers:
            assert any(np.allclose(got, right[:2], atol=1e-4) for right in rights)


def test_nobody_passes_the_token(model: Path) -> None:
    token = "correct horse battery staple"
    with running_server(settings_for(model, token=token)) as server:
        passed = list(attempts_that_pass(server, token))
        for path in ("/metrics", "/v2"):
            right = hostile.request(path, b"", f"Authorization: Bearer {token}", method="GET")
            assert hostile.leaked(hostile.exchange(server.port, right)), "whoever has it gets an answer"
    assert not passed, passed[:20]
    reliability.write("token", f"{ATTEMPTS} attempts, none through")


def attempts_that_pass(server: RunningServer, token: str) -> Iterator[str]:
    assert server.grpc_port is not None
    tries: list[Callable[[random.Random], bool]] = hostile.token_attempts(server.port, server.grpc_port, token)
    for number in range(ATTEMPTS):
        attempt = tries[number % len(tries)]
        if attempt(random.Random(number)):
            yield f"{attempt.__name__} {number}"
