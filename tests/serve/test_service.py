import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from conveyor.infer.preprocessing import Preprocessing
from conveyor.serve.app import make_app
from conveyor.serve.deadline import Limit
from conveyor.serve.errors import Late
from conveyor.serve.protocols import images
from conveyor.serve.protocols.arrivals import Arrivals
from conveyor.serve.protocols.grpc_server import Rpc
from conveyor.serve.protocols.protos import MESSAGES
from conveyor.serve.service import Asked, Service
from conveyor.serve.settings import ServeSettings

PAUSE = 0.4
"""Seconds for each step of a request."""


class SlowModel:
    """Takes its time for every answer."""

    name, version, requests, num_classes, abstain_below, thresholds = "digits", "1", 0, 10, 0.0, None
    preprocessing = Preprocessing(image_size=8, channels=1, in_channels=1)

    @property
    def batcher(self) -> "SlowModel":
        return self

    async def submit(self, batch: np.ndarray, on_wait: Callable[[float], None]) -> np.ndarray:
        on_wait(0.0)
        await asyncio.sleep(PAUSE)
        return np.zeros((len(batch), 10), np.float32)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        return logits

    def best(self, probabilities: np.ndarray) -> list[Any]:
        return []


def slow_service(monkeypatch: pytest.MonkeyPatch, timeout: float) -> Service:
    def slowly(*_: object) -> np.ndarray:
        time.sleep(PAUSE)
        return np.zeros((8, 8, 1), np.uint8)

    monkeypatch.setattr(images, "decode", slowly)
    service = Service(ServeSettings(path="x", timeout=timeout))
    service._current = SlowModel()  # type: ignore[assignment]
    return service


def test_decoding_ends_with_the_time_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def slowly(*_: object) -> np.ndarray:
        decoded.append(1)
        time.sleep(0.05)
        return np.zeros((8, 8, 1), np.uint8)

    monkeypatch.setattr(images, "decode", slowly)
    service = Service(ServeSettings(path="x", timeout=0.2))

    async def decode(count: int) -> Any:
        async with Limit(0.2) as limit:
            asked = Asked(SlowModel(), limit)  # type: ignore[arg-type]
            return await service.decode(asked, [b"photograph"] * count)

    assert len(asyncio.run(decode(2))) == 2
    with pytest.raises(Late, match=r"within 0\.2 seconds"):
        asyncio.run(decode(100))
    assert len(decoded) < 20, "the thread has stopped too"


def test_photographs_that_nobody_waits_for_are_neither_decoded_nor_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of gRPC callers that cancel: the threads would be busy, and behind them the line would grow without end."""
    begun, go_on, decoded = threading.Event(), threading.Event(), []

    def slowly(content: bytes, *_: object) -> np.ndarray:
        decoded.append(content)
        begun.set()
        go_on.wait(20)
        return np.zeros((8, 8, 1), np.uint8)

    monkeypatch.setattr(images, "decode", slowly)
    service, photograph = Service(ServeSettings(path="x")), bytes(1000)

    async def test() -> int:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        service._decoders = asyncio.Semaphore(1)
        before = sys.getrefcount(photograph)
        async with Limit(60) as limit:
            asked = Asked(SlowModel(), limit)  # type: ignore[arg-type]
            tasks = [asyncio.create_task(service.decode(asked, [each] * 50)) for each in (b"first", photograph)]
            await asyncio.sleep(0)
            while not begun.is_set():
                await asyncio.sleep(0.01)
            first, second = tasks
            first.cancel()
            second.cancel()
            await asyncio.wait([second])
            del second, tasks
            gc.collect()  # the traces of the cancellation
            kept = sys.getrefcount(photograph) - before
            go_on.set()
            await asyncio.wait([first])
        return kept

    kept = asyncio.run(test())
    assert decoded == [b"first"]
    assert kept < 10


@pytest.mark.parametrize(("timeout", "status"), [(20.0, 200), (2.5 * PAUSE, 504), (0.5 * PAUSE, 408)])
def test_reading_decoding_and_inference_share_the_time_of_a_request(
    monkeypatch: pytest.MonkeyPatch, timeout: float, status: int
) -> None:
    service = slow_service(monkeypatch, timeout)

    async def body() -> Any:
        yield b"photo"
        await asyncio.sleep(PAUSE)
        yield b"graph"

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(service))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/classify", content=SlowBody())

    class SlowBody(httpx.AsyncByteStream):
        def __aiter__(self) -> Any:
            return body()

    assert asyncio.run(ask()).status_code == status


class Call:
    """What the library tells of a gRPC call."""

    def __init__(self, remaining: float | None, content: bytes) -> None:
        self._remaining, self._content = remaining, content

    async def read(self) -> bytes:
        return self._content

    def time_remaining(self) -> float | None:
        return self._remaining

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise grpc.aio.AbortError(code, details)


@pytest.mark.parametrize(
    ("timeout", "remaining", "answered"),
    [(20.0, None, True), (20.0, 20.0, True), (1.5 * PAUSE, None, False), (20.0, 1.5 * PAUSE, False)],
    ids=["time enough", "the caller waits", "too late for the server", "too late for the caller"],
)
def test_decoding_and_inference_share_the_time_of_a_call(
    monkeypatch: pytest.MonkeyPatch, timeout: float, remaining: float | None, answered: bool
) -> None:
    rpc = Rpc(slow_service(monkeypatch, timeout))
    request = MESSAGES["ModelInferRequest"](model_name="digits")
    request.inputs.add(name="images", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"photograph")

    async def ask() -> Any:
        message, arriving = MESSAGES["ModelInferRequest"], Arrivals(1)
        call = rpc._guarded(rpc.model_infer, message, arriving, open_to_all=False)
        return await call(None, Call(remaining, request.SerializeToString()))

    if answered:
        assert asyncio.run(ask()).outputs[0].shape == [1, 10]
    else:
        with pytest.raises(grpc.aio.AbortError) as caught:
            asyncio.run(ask())
        assert caught.value.args[0] == grpc.StatusCode.DEADLINE_EXCEEDED
