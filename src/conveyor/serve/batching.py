"""Dynamic batching: requests that arrive together are answered together."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conveyor.serve.errors import Overloaded, Refused, Unavailable

Run = Callable[[NDArray[np.uint8]], Awaitable[NDArray[np.float32]]]


class _Item(NamedTuple):
    images: NDArray[np.uint8]
    answer: "asyncio.Future[NDArray[np.float32]]"
    arrived: float
    on_wait: Callable[[float], None]


def padded_size(count: int, sizes: tuple[int, ...]) -> int:
    """The smallest allowed batch size that holds `count` images."""
    return next(size for size in sizes if size >= count)


class Batcher:
    """Joins requests into batches of an allowed size, first come first served.

    A batch leaves when it is full, when its first request has waited `delay` seconds, or at once when that time has
    passed while all workers were busy. Short batches are padded with zeros. At most `limit` images wait.
    """

    def __init__(
        self,
        run: Run,
        *,
        sizes: tuple[int, ...],
        parallel: int,
        delay: float,
        limit: int,
        on_batch: Callable[[int, int], None] = lambda images, size: None,
    ) -> None:
        self._run, self._sizes, self._delay, self._limit = run, sizes, delay, limit
        self._on_batch = on_batch
        self._waiting: deque[_Item] = deque()
        self.images_waiting = 0
        self.requests_open = 0
        self._arrival = asyncio.Event()
        self._turn = asyncio.Lock()
        self._closed = False
        self._tasks = [asyncio.get_running_loop().create_task(self._serve()) for _ in range(parallel)]

    async def submit(
        self, images: NDArray[np.uint8], on_wait: Callable[[float], None] = lambda seconds: None
    ) -> NDArray[np.float32]:
        """The logits of `images`, as many as the queue holds; raises `Overloaded` when it is full.

        `on_wait` gets the seconds that each part of them waited for its batch.
        """
        if self._closed:
            raise Unavailable("the server is stopping")
        largest = self._sizes[-1]
        if len(images) > self._limit:  # a later attempt would fail as well
            raise Refused(f"{len(images)} images in one request: at most {self._limit} are accepted")
        if self.images_waiting + len(images) > self._limit:
            raise Overloaded(f"{self.images_waiting} images are waiting, the limit is {self._limit}: try again later")
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        parts = [
            _Item(images[start : start + largest], loop.create_future(), now, on_wait)
            for start in range(0, len(images), largest)
        ]
        self._waiting.extend(parts)
        self.images_waiting += len(images)
        self.requests_open += 1
        self._arrival.set()
        try:
            answers = await asyncio.gather(*(part.answer for part in parts))
        finally:
            self.requests_open -= 1
        return answers[0] if len(answers) == 1 else np.concatenate(answers)

    async def close(self) -> None:
        """Answer everything that waits, then stop."""
        self._closed = True
        while self.requests_open:
            await asyncio.sleep(0.005)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self) -> None:
        while True:
            async with self._turn:
                items = await self._gather()
            if not items:
                continue
            count = sum(len(item.images) for item in items)
            size = padded_size(count, self._sizes)
            self._on_batch(count, size)
            for item in items:
                item.on_wait(time.monotonic() - item.arrived)
            try:
                answer = await self._run(_joined(items, size))
            except Refused as error:
                _fail(items, error)
            except asyncio.CancelledError:
                _fail(items, Unavailable("the server is stopping"))
                raise
            except Exception as error:  # a bug of ours must not leave callers waiting for ever
                _fail(items, Unavailable(f"the model failed: {type(error).__name__}"))
            else:
                start = 0
                for item in items:
                    stop = start + len(item.images)
                    if not item.answer.done():
                        item.answer.set_result(answer[start:stop])
                    start = stop

    async def _gather(self) -> list[_Item]:
        """Wait for a first request, then until the batch is full or the first request has waited `delay` seconds."""
        while not self._waiting:
            self._arrival.clear()
            await self._arrival.wait()
        deadline = self._waiting[0].arrived + self._delay
        while self.images_waiting < self._sizes[-1] and not self._closed:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._arrival.clear()
            try:
                async with asyncio.timeout(left):
                    await self._arrival.wait()
            except TimeoutError:
                break
        return self._take()

    def _take(self) -> list[_Item]:
        items: list[_Item] = []
        total = 0
        while self._waiting and total + len(self._waiting[0].images) <= self._sizes[-1]:
            item = self._waiting.popleft()
            self.images_waiting -= len(item.images)
            if item.answer.done():  # given up by its caller
                continue
            items.append(item)
            total += len(item.images)
        return items


def _joined(items: list[_Item], size: int) -> NDArray[np.uint8]:
    first = items[0].images
    if len(items) == 1 and len(first) == size:
        return first
    batch = np.empty((size, *first.shape[1:]), np.uint8)
    start = 0
    for item in items:
        batch[start : start + len(item.images)] = item.images
        start += len(item.images)
    batch[start:] = 0
    return batch


def _fail(items: list[_Item], error: Exception) -> None:
    for item in items:
        if not item.answer.done():
            item.answer.set_exception(error)
