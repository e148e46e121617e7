"""Validation counts every image exactly once."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from conveyor.data.batch import Batch, Target
from conveyor.data.feed import ValidationFeed
from conveyor.data.formats.memory import MemoryDataset
from conveyor.evaluate.accuracy import Accuracy, validate
from conveyor.measure.latency import Latency
from conveyor.models.clone import evaluating
from conveyor.world.world import World

CLASSES = 5


class Reader(nn.Module):
    """Answers with the image's first pixel: the data decides the accuracy."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(images[:, 0].long(), CLASSES).float()


def prepare(batch: Batch, train: bool) -> tuple[torch.Tensor, Target]:
    assert not train
    return batch.images[:, 0, 0, :], Target(batch.labels)


def data_with(hits: int, images: int) -> MemoryDataset:
    labels = np.arange(images) % CLASSES
    answers = np.where(np.arange(images) < hits, labels, (labels + 1) % CLASSES)
    return MemoryDataset(answers.astype(np.uint8).reshape(images, 1, 1, 1), labels, CLASSES)


@settings(max_examples=25)
@given(images=st.integers(1, 60), batch=st.integers(1, 70), lanes=st.integers(1, 5), data=st.data())
def test_any_batch_and_any_number_of_lanes_count_alike(
    images: int, batch: int, lanes: int, data: st.DataObject
) -> None:
    hits = data.draw(st.integers(0, images))
    dataset = data_with(hits, images)
    results = []
    for lane in range(lanes):
        with ValidationFeed(dataset, batch, lane, lanes) as feed:
            results.append(validate(Reader(), feed, prepare, World(), num_batches=images, num_classes=CLASSES))
    assert sum(result.images for result in results) == images
    counted = sum(result.top1 * result.images / 100 for result in results)
    assert round(counted, 6) == hits
    confusion = sum(result.confusion for result in results if result.confusion is not None)
    assert isinstance(confusion, torch.Tensor)
    assert int(confusion.sum()) == images
    assert int(confusion.diag().sum()) == hits


def test_modes_come_back_and_nothing_is_learnt() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Dropout())
    model.train()
    model[1].eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False, True]


def test_latencies_are_reported_when_asked_for() -> None:
    dataset = data_with(3, 10)
    with ValidationFeed(dataset, 4) as feed:
        result = validate(Reader(), feed, prepare, World(), num_batches=3, num_classes=CLASSES, latency=True)
    record = result.record("x", 3, 1.5)
    assert len(result.latencies) == 3
    assert 0 < record["latency_avg_ms"] <= record["latency_max_ms"]
    assert record["latency_p50_ms"] <= record["latency_p99_ms"] <= record["latency_max_ms"]
    assert record.items() >= Latency.of(result.latencies).fields().items()
    assert record["accuracy"] == 30.0
    assert (record["name"], record["update"], record["epoch"], record["images"]) == ("x", 3, 1.5, 10)


def test_each_batch_is_shown_without_its_padding() -> None:
    seen: list[tuple[int, int]] = []

    def feed() -> Iterator[Batch]:
        yield from ValidationFeed(data_with(7, 7), 4)

    result = validate(
        Reader(), feed(), prepare, World(), num_batches=2, num_classes=CLASSES,
        on_batch=lambda batch, logits: seen.append((batch.num_valid, len(logits))),
    )  # fmt: skip
    assert seen == [(4, 4), (3, 3)]
    assert isinstance(result, Accuracy)
    assert result.top1 == 100.0
    assert result.top5 == 100.0


def test_a_percentile_is_one_definition_for_validation_and_engines() -> None:
    """The smallest pass that at least the share does not exceed: of 100 passes the 99th, not the slowest."""
    passes = tuple(number / 1000 for number in range(1, 101))
    record = Accuracy(0.0, 0.0, 1, 0.0, 1.0, latencies=passes).record("x", 0, 0.0)
    assert (record["latency_p50_ms"], record["latency_p99_ms"]) == (pytest.approx(50.0), pytest.approx(99.0))
