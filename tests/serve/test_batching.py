import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.serve.batching import Batcher, padded_size
from conveyor.serve.errors import Overloaded, Unavailable


def images(*values: int) -> np.ndarray:
    return np.array(values, np.uint8).reshape(-1, 1, 1, 1)


class Model:
    """Answers each image with its own value, and remembers the batches it was called with."""

    def __init__(self, pause: float = 0.0) -> None:
        self.batches: list[list[int]] = []
        self.pause, self.calls = pause, 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, batch: np.ndarray) -> np.ndarray:
        self.calls += 1
        await self.gate.wait()
        await asyncio.sleep(self.pause)
        self.batches.append(batch.ravel().tolist())
        return batch.reshape(len(batch), 1).astype(np.float32)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


def with_batcher(
    test: Callable[[Batcher, Model], Awaitable[None]],
    *,
    sizes: tuple[int, ...] = (1, 2, 4),
    parallel: int = 1,
    delay: float = 0.0,
    limit: int = 100,
) -> Model:
    async def run() -> Model:
        model = Model()
        batcher = Batcher(model, sizes=sizes, parallel=parallel, delay=delay, limit=limit)
        await test(batcher, model)
        await batcher.close()
        return model

    return asyncio.run(run())


def test_requests_that_arrive_together_share_a_batch_and_short_ones_are_padded() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        answers = await asyncio.gather(*(batcher.submit(images(value)) for value in (5, 6, 7)))
        assert [answer.tolist() for answer in answers] == [[[5]], [[6]], [[7]]]

    assert with_batcher(test, delay=0.05).batches == [[5, 6, 7, 0]]


def test_a_full_batch_does_not_wait() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        async with asyncio.timeout(5):
            await asyncio.gather(batcher.submit(images(1, 2)), batcher.submit(images(3, 4)))

    assert with_batcher(test, delay=60.0).batches == [[1, 2, 3, 4]]


def test_a_request_larger_than_a_batch_is_cut() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        answer = await batcher.submit(images(*range(10)))
        assert answer.ravel().tolist() == list(range(10))

    assert [len(batch) for batch in with_batcher(test).batches] == [4, 4, 2]


def test_requests_are_never_torn_or_overtaken() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        model.gate.clear()
        waiting = [asyncio.ensure_future(batcher.submit(images(*values))) for values in ((1,), (2, 3, 4), (5, 6), (7,))]
        await until(lambda: model.calls == 1)
        model.gate.set()
        await asyncio.gather(*waiting)

    # The first leaves alone, since nothing else was there; then as many whole requests as fit, in order.
    assert with_batcher(test, sizes=(4,)).batches in (
        [[1, 0, 0, 0], [2, 3, 4, 0], [5, 6, 7, 0]],
        [[1, 2, 3, 4], [5, 6, 7, 0]],
    )


def test_a_full_queue_refuses_at_once() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        model.gate.clear()
        waiting = [asyncio.ensure_future(batcher.submit(images(1)))]
        await until(lambda: model.calls == 1)
        waiting += [asyncio.ensure_future(batcher.submit(images(1))) for _ in range(5)]
        await until(lambda: batcher.images_waiting == 5)
        with pytest.raises(Overloaded, match="the limit is 5"):
            await batcher.submit(images(9))
        model.gate.set()
        await asyncio.gather(*waiting)

    with_batcher(test, sizes=(1,), limit=5)


def test_a_caller_that_gave_up_costs_nothing() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        model.gate.clear()
        first = asyncio.ensure_future(batcher.submit(images(1)))
        await until(lambda: model.calls == 1)
        second = asyncio.ensure_future(batcher.submit(images(2)))
        await until(lambda: batcher.images_waiting == 1)
        second.cancel()
        third = asyncio.ensure_future(batcher.submit(images(3)))
        await until(lambda: batcher.images_waiting == 2)
        model.gate.set()
        await asyncio.gather(first, third)
        assert batcher.images_waiting == 0

    assert with_batcher(test, sizes=(1,)).batches == [[1], [3]]


def test_a_failing_model_fails_only_its_own_batch() -> None:
    async def model(batch: np.ndarray) -> np.ndarray:
        if batch[0] == 255:
            raise ZeroDivisionError
        return batch.reshape(len(batch), 1).astype(np.float32)

    async def run() -> None:
        batcher = Batcher(model, sizes=(1,), parallel=1, delay=0, limit=10)
        with pytest.raises(Unavailable, match="ZeroDivisionError"):
            await batcher.submit(images(255))
        assert (await batcher.submit(images(3))).tolist() == [[3]]
        await batcher.close()

    asyncio.run(run())


def test_closing_answers_what_waits_and_refuses_what_comes() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        model.pause = 0.01
        waiting = [asyncio.ensure_future(batcher.submit(images(value))) for value in range(8)]
        await asyncio.sleep(0)
        await batcher.close()
        assert [(await each).item() for each in waiting] == list(range(8))
        with pytest.raises(Unavailable):
            await batcher.submit(images(1))

    with_batcher(test, delay=30.0)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 3))
def test_every_image_is_answered_once_with_its_own_answer(requests: list[int], parallel: int) -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        number = iter(range(1, 256))
        batches = [images(*(next(number) for _ in range(count))) for count in requests]
        answers = await asyncio.gather(*(batcher.submit(batch) for batch in batches))
        for batch, answer in zip(batches, answers, strict=True):
            assert answer.ravel().tolist() == batch.ravel().tolist()

    model = with_batcher(test, sizes=(2, 4), parallel=parallel)
    assert sum(value > 0 for batch in model.batches for value in batch) == sum(requests)
    assert {len(batch) for batch in model.batches} <= {2, 4}


def test_padding_goes_to_the_smallest_allowed_size() -> None:
    assert [padded_size(count, (1, 4, 16)) for count in (1, 2, 4, 5, 16)] == [1, 4, 4, 16, 16]
