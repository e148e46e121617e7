"""A server under load for half an hour while its engines are killed, versions are swapped, bad ones come and peers are hostile.

CONVEYOR_PUNISH_MINUTES sets the time, CONVEYOR_PUNISH_SEED what is drawn.
"""

import contextlib
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.conformance import hostile, reliability
from tests.conformance.test_attack_server import FAILED, answers_of
from tests.conformance.test_punisher import MINUTES, SEED
from tests.serve.conftest import IMAGES, settings_for, write_version
from tests.serve.test_lifecycle import metric, until, workers_of

from conveyor.request.callers import Target, make_caller
from conveyor.serve.launcher import RunningServer, running_server

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(int(MINUTES * 120) + 600)]
CLIENTS = 8
MOST_GROWTH, MOST_DESCRIPTORS = 64 << 20, 16
"""What the server may have more at its end than after a fifth of the time: bytes, open files."""


class Client:
    """Asks without pause over one connection; every answer has to come, and to be one of those that are right."""

    def __init__(self, protocol: str, port: int, right: list[np.ndarray]) -> None:
        self.answers, self.wrong = 0, list[str]()
        self._call, self._right = make_caller(Target(protocol, "127.0.0.1", port, "digits")), right
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        with self._call as call:
            while not self._leave.is_set():
                try:
                    got = call(IMAGES[:2], 60)
                    if not any(np.allclose(got, one[:2], atol=1e-4) for one in list(self._right)):
                        self.wrong.append("other numbers")
                except Exception as error:
                    self.wrong.append(repr(error))
                    return
                self.answers += 1

    def stop(self) -> None:
        self._leave.set()
        self._thread.join(90)


def test_a_punished_server(tmp_path: Path) -> None:
    draw, folder = random.Random(SEED), tmp_path / "digits"
    right = [answers_of(write_version(folder, "1"))]
    done, versions = Counter[str](), iter(range(2, 10_000))

    def kill_engine(server: RunningServer) -> None:
        before = metric(server, "conveyor_worker_restarts_total")
        with contextlib.suppress(psutil.NoSuchProcess):  # the one that was killed last may not be taken away yet
            draw.choice(workers_of(server)).kill()
            until(lambda: metric(server, "conveyor_worker_restarts_total") > before)

    def swap(server: RunningServer) -> None:
        before, number = metric(server, "conveyor_model_swaps_total"), next(versions)
        made = write_version(tmp_path / f"next-{number}", str(number), seed=number)
        right.append(answers_of(made))
        made.rename(folder / str(number))
        until(lambda: metric(server, "conveyor_model_swaps_total") > before)

    def bad_version(server: RunningServer) -> None:
        before, number = metric(server, "conveyor_model_rejects_total"), next(versions)
        newest = max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        shutil.copytree(newest, tmp_path / "bad")
        (tmp_path / "bad" / "model.onnx").write_bytes(draw.randbytes(1000))
        (tmp_path / "bad").rename(folder / str(number))
        until(lambda: metric(server, "conveyor_model_rejects_total") > before)
        shutil.rmtree(folder / str(number))

    def hostile_peers(server: RunningServer) -> None:
        assert server.grpc_port is not None
        kinds = {**hostile.http_kinds(server.port), **hostile.grpc_kinds(server.grpc_port)}
        for name in draw.sample(sorted(kinds), 20):
            found = kinds[name](random.Random(draw.random()))
            assert found not in FAILED, f"{name}: {found}"
            assert not (isinstance(found, int) and found >= 500), f"{name}: {found}"

    disturbances: list[Callable[[RunningServer], None]] = [kill_engine, swap, bad_version, hostile_peers]
    settings = settings_for(folder, workers=2, poll=0.2, queue=512, timeout=3.0, max_body=300_000, max_pixels=4_000_000)
    with running_server(settings) as server:
        assert server.grpc_port is not None
        process = psutil.Process(server.process.pid)
        clients = [
            Client(protocol, port, right)
            for protocol, port in (("http", server.port), ("grpc", server.grpc_port))
            for _ in range(CLIENTS // 2)
        ]
        started, before = time.monotonic(), (0, 0)
        try:
            while (passed := time.monotonic() - started) < 60 * MINUTES:
                if not before[0] and passed > 12 * MINUTES:
                    before = (process.memory_info().rss, process.num_fds())
                disturb = draw.choice(disturbances)
                disturb(server)
                done[disturb.__name__.replace("_", " ")] += 1
                assert not [wrong for client in clients for wrong in client.wrong]
                time.sleep(draw.uniform(0.0, 2.0))
        finally:
            for client in clients:
                client.stop()
        grown = process.memory_info().rss - before[0], process.num_fds() - before[1]
        assert server.stop() == 0, server.log.read_text()[-3000:]
        words = server.log.read_text()
    assert not [wrong for client in clients for wrong in client.wrong]
    assert before[0], "too short to tell whether it grows"
    assert grown[0] < MOST_GROWTH
    assert grown[1] <= MOST_DESCRIPTORS
    assert "Traceback" not in words, words[-5000:]
    made = ", ".join(f"{name} {count}" for name, count in sorted(done.items()))
    reliability.write(
        "server",
        f"{MINUTES:g} minutes, {made}: {sum(client.answers for client in clients)} requests answered, none lost; "
        f"{grown[0] / 2**20:+.0f} MiB, {grown[1]:+d} open files after the first fifth",
    )
