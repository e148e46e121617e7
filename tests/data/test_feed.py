"""Feeding: right samples in the right order, any start, no leaks, errors with their own words."""

import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from conveyor.data.batch import PADDING_LABEL, Batch, RawBatch
from conveyor.data.feed import TrainingFeed, ValidationFeed
from conveyor.data.order import Indices, epoch_order
from conveyor.topology import Topology


class Numbered:
    """Image i is filled with i mod 256, its label is i; read in chunks, with what a test wants to go wrong."""

    num_classes = 1000
    class_names = ()

    def __init__(self, length: int = 100, chunk: int = 3, bad: int | None = None, delay: float = 0.0) -> None:
        self._length, self.chunk, self._bad, self._delay = length, chunk, bad, delay
        self.reads = 0

    def __len__(self) -> int:
        return self._length

    def shape(self, epoch: int) -> tuple[int, int, int]:
        return 2, 2, 1

    def shards(self) -> Sequence[int]:
        return ()

    def statistics(self) -> dict[str, float]:
        return {"decode": 1.5}

    def read(self, indices: Indices, epoch: int, out: Tensor | None = None) -> RawBatch:
        self.reads += len(indices)
        time.sleep(self._delay)
        if self._bad in indices:
            raise OSError(f"image {self._bad} cannot be read")
        assert out is not None
        out[:] = torch.from_numpy(indices % 256).to(torch.uint8).view(-1, 1, 1, 1)
        return RawBatch(out, torch.from_numpy(np.ascontiguousarray(indices)))


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("conveyor-data")]


@pytest.mark.parametrize("chunk", [0, 3])
def test_slots_get_their_samples_in_order(chunk: int) -> None:
    topology = Topology(micro_batch=4, accumulation=3, replicas=2)
    feed = TrainingFeed(Numbered(chunk=chunk), topology, updates_per_epoch=4, stop_update=9, seed=5, threads=3)
    batches = list(feed)
    assert [(b.update, b.slot, b.epoch) for b in batches] == [(u, k, u // 4) for u in range(9) for k in range(6)]
    for epoch in (0, 1):
        samples = torch.cat([batch.samples for batch in batches if batch.epoch == epoch])
        assert samples.tolist() == epoch_order(100, 5, epoch)[:96].tolist()
    for batch in batches:
        assert torch.equal(batch.labels, batch.samples)
        assert (batch.images == (batch.samples % 256).to(torch.uint8).view(-1, 1, 1, 1)).all()
        assert batch.num_valid == 4
    assert not loader_threads()


@pytest.mark.parametrize("lanes", [1, 2, 3, 6])
def test_lanes_together_see_what_one_sees(lanes: int) -> None:
    topology = Topology(2, 3, 2)
    whole = {
        (b.update, b.slot): b.samples.tolist()
        for b in TrainingFeed(Numbered(), topology, updates_per_epoch=8, stop_update=5)
    }
    parts = {}
    for lane in range(lanes):
        mine = range(lane * 6 // lanes, (lane + 1) * 6 // lanes)
        for batch in TrainingFeed(Numbered(), topology, updates_per_epoch=8, slots=mine, stop_update=5):
            parts[batch.update, batch.slot] = batch.samples.tolist()
    assert parts == whole


def test_a_run_can_start_anywhere_without_reading_what_came_before() -> None:
    topology = Topology(5, 2)
    whole = [b.samples.tolist() for b in TrainingFeed(Numbered(), topology, updates_per_epoch=10, stop_update=25)]
    dataset = Numbered()
    rest = TrainingFeed(dataset, topology, updates_per_epoch=10, start_update=17, stop_update=25)
    assert [batch.samples.tolist() for batch in rest] == whole[34:]
    assert dataset.reads == 16 * 5


def test_prefetch_is_bounded() -> None:
    dataset = Numbered(chunk=0)
    with TrainingFeed(dataset, Topology(10), updates_per_epoch=10, prefetch=3) as feed:
        next(feed)
        deadline = time.monotonic() + 10
        while dataset.reads < 40 and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05)  # in which a fifth batch would begin
        assert dataset.reads == 40
    assert not loader_threads()


@pytest.mark.parametrize("chunk", [0, 2])
def test_an_error_in_a_thread_reaches_the_consumer(chunk: int) -> None:
    feed = TrainingFeed(Numbered(chunk=chunk, bad=7), Topology(10), updates_per_epoch=10, threads=2)
    with pytest.raises(OSError, match="image 7 cannot be read"):
        for _ in range(10):
            next(feed)
    assert not loader_threads()
    with pytest.raises(StopIteration):
        next(feed)


def test_an_error_in_the_transform_reaches_the_consumer() -> None:
    def fail(batch: Batch) -> Batch:
        raise RuntimeError(f"no transform for update {batch.update}")

    feed = TrainingFeed(Numbered(), Topology(10), updates_per_epoch=10, transform=fail)
    with pytest.raises(RuntimeError, match="update 0"):
        next(feed)
    assert not loader_threads()


def test_closing_in_the_middle_ends_the_threads_soon() -> None:
    dataset = Numbered(chunk=1, delay=0.01)
    feed = TrainingFeed(dataset, Topology(50), updates_per_epoch=2, prefetch=8, threads=2)
    next(feed)
    feed.close()
    feed.close()
    assert not loader_threads()
    assert dataset.reads < 200


def test_an_interpreter_with_an_open_feed_exits(python) -> None:
    done = python(
        "import numpy as np\n"
        "from conveyor.data.feed import TrainingFeed\n"
        "from conveyor.data.formats.memory import MemoryDataset\n"
        "from conveyor.topology import Topology\n"
        "d = MemoryDataset(np.zeros((50, 4, 4, 1), np.uint8), np.zeros(50, int), 2)\n"
        "feed = TrainingFeed(d, Topology(5), updates_per_epoch=10)\n"
        "print(next(feed).images.shape)\n",
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "5, 4, 4, 1" in done.stdout


@pytest.mark.parametrize(("count", "batch", "lanes"), [(100, 7, 1), (100, 10, 3), (5, 8, 2), (9, 3, 4)])
def test_validation_sees_every_image_once(count: int, batch: int, lanes: int) -> None:
    seen = []
    for lane in range(lanes):
        feed = ValidationFeed(Numbered(count), batch, lane, lanes)
        batches = list(feed)
        assert len(batches) == len(feed)
        for each in batches:
            assert each.images.shape[0] == batch
            assert (each.labels[each.num_valid :] == PADDING_LABEL).all()
            assert (each.images[each.num_valid :] == 0).all()
            seen += each.labels[: each.num_valid].tolist()
    assert sorted(seen) == list(range(count))


def test_wrong_lanes_and_slots_are_our_own_mistakes() -> None:
    with pytest.raises(ValueError, match="lane 2"):
        ValidationFeed(Numbered(), 4, 2, 2)
    with pytest.raises(ValueError, match="slots"):
        TrainingFeed(Numbered(), Topology(4, 2), updates_per_epoch=1, slots=[2])


def test_statistics() -> None:
    feed = TrainingFeed(Numbered(), Topology(10), updates_per_epoch=10, stop_update=4)
    assert len(list(feed)) == 4
    found = feed.statistics()
    assert found["images"] == 40
    assert found["batches"] == 4
    assert found["decode"] == 1.5
    assert found["wait"] >= 0
    assert found["images_per_second"] > 0
