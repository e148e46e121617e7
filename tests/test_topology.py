"""The arithmetic against its formulas, worked examples and an exhaustive search."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.errors import UserError
from conveyor.options.batch import BatchOptions
from conveyor.options.run import EventOptions
from conveyor.topology import (
    Length,
    Topology,
    closest_divisor,
    divisors,
    group_slots,
    host_events,
    updates_per_event,
)

small = st.integers(1, 40)


@given(small, small, small, small)
def test_batch_identities(micro: int, accumulation: int, replicas: int, stages: int) -> None:
    topology = Topology(micro, accumulation, replicas, stages)
    assert topology.global_batch == micro * accumulation * replicas
    assert topology.slots * micro == topology.global_batch
    assert topology.devices == replicas * stages


def test_stages_that_share_a_device_need_fewer() -> None:
    options = BatchOptions(replicas=3, splits=("a", "b", "c"), device_mapping=(0, 1, 1, 0))
    topology, _ = Topology.from_options(options)
    assert (topology.stages, topology.depth, topology.devices) == (4, 2, 6)
    assert options.devices_per_replica == 2


def test_global_batch_gives_the_nearest_accumulation() -> None:
    topology, notes = Topology.from_options(BatchOptions(micro_batch_size=3, replicas=2, global_batch_size=10))
    assert (topology.accumulation, topology.global_batch) == (2, 12)
    assert len(notes) == 1
    assert "10" in notes[0]
    assert "12" in notes[0]
    topology, notes = Topology.from_options(BatchOptions(micro_batch_size=8, replicas=36, global_batch_size=3520))
    assert (topology.accumulation, topology.global_batch) == (12, 3456)
    topology, notes = Topology.from_options(BatchOptions(micro_batch_size=16, replicas=4, global_batch_size=8192))
    assert (topology.accumulation, notes) == (128, [])


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (BatchOptions(stages=3, splits=("a",)), "3 stages need 2 splits"),
        (BatchOptions(splits=("auto",)), "--stages"),
        (BatchOptions(splits=("a",), device_mapping=(0,)), "1 number for 2 stages"),
        (BatchOptions(splits=("a", "b"), device_mapping=(0, 2, 2)), "gap"),
    ],
)
def test_stages_that_do_not_fit(batch: BatchOptions, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Topology.from_options(batch)


def test_length_counts_whole_updates() -> None:
    assert Length.of(50_000, 64, epochs=6) == Length(781, 4686, Fraction(6))
    assert Length.of(1_281_167, 16_384, epochs=65).updates_total == 78 * 65
    assert Length.of(1_281_167, 1024, epochs=0.5).updates_total == math.floor(1_281_167 * Fraction(1, 2) / 1024)
    assert Length.of(100, 10, updates=25).epochs == Fraction(5, 2)
    assert Length.of(100, 10, epochs=5, updates_per_epoch=3).updates_total == 15
    with pytest.raises(UserError, match="64 images"):
        Length.of(50, 64, epochs=1)


@given(st.integers(1, 3000), st.integers(0, 3000))
def test_closest_divisor_is_the_closest(number: int, wanted: int) -> None:
    found = closest_divisor(number, wanted)
    every = [candidate for candidate in range(1, number + 1) if number % candidate == 0]
    assert sorted(divisors(number)) == every
    assert found in every
    assert abs(found - wanted) == min(abs(candidate - wanted) for candidate in every)


def test_closest_divisor_ties_and_squares() -> None:
    assert closest_divisor(12, 5) == 6
    assert closest_divisor(4, 2) == 2
    assert closest_divisor(100, 10) == 10
    assert [closest_divisor(781, wanted) for wanted in (1, 2, 4, 6, 10, 40, 50)] == [1, 1, 1, 1, 11, 11, 71]


CIFAR = Length.of(50_000, 64, epochs=6)


@pytest.mark.parametrize(
    ("logs", "per_log", "call", "calls", "notes"),
    [
        ("1", 781, 781, 6, 0),
        ("2", 781, 781, 6, 1),
        ("10", 71, 71, 66, 1),
        ("1/2", 1562, 1562, 3, 0),
        ("1/3", 2343, 2343, 2, 0),
        ("0", 0, 4686, 1, 1),
    ],
)
def test_host_events_without_checkpoints(logs: str, per_log: int, call: int, calls: int, notes: int) -> None:
    events = host_events(CIFAR, EventOptions(logs_per_epoch=Fraction(logs), checkpoints_per_epoch=Fraction(0)))
    assert (events.updates_per_log, events.updates_per_call, events.calls) == (per_log, call, calls)
    assert len(events.notes) == notes


@pytest.mark.parametrize("logs", ["1", "2", "1/2", "1/3", "0"])
def test_host_events_with_a_checkpoint_each_epoch(logs: str) -> None:
    events = host_events(CIFAR, EventOptions(logs_per_epoch=Fraction(logs), checkpoints_per_epoch=Fraction(1)))
    assert (events.updates_per_checkpoint, events.updates_per_call, events.calls) == (781, 781, 6)


def test_logging_two_epochs_at_a_time_needs_an_even_number() -> None:
    with pytest.raises(UserError, match="log 2 epochs at a time for 5 epochs"):
        host_events(
            Length.of(50_000, 64, epochs=5),
            EventOptions(logs_per_epoch=Fraction(1, 2), checkpoints_per_epoch=Fraction(1)),
        )
    for epochs in (49, 98):  # exact fractions: floating point would refuse these
        length = Length.of(100, 10, epochs=epochs)
        events = host_events(length, EventOptions(logs_per_epoch=Fraction(1, 49), checkpoints_per_epoch=Fraction(0)))
        assert events.updates_per_log == 490


@pytest.mark.parametrize(
    ("batch", "epochs", "logs", "saves", "first", "expected"),
    [
        (8192, 100, "1", "1", 0, (156, 156, 156, 100)),
        (2304, 44, "1", "1/4", 0, (556, 2224, 556, 44)),
        (1920, 40, "1", "1/4", 0, (667, 2668, 667, 40)),
        (1920, 5, "29", "1/4", 0, (23, 3335, 23, 145)),
        (480, 5, "29", "1/4", 0, (157, 13345, 157, 85)),
        (3456, 38, "1", "1/4", 2, (370, 1480, 370, 38)),
    ],
)
def test_host_events_of_known_configurations(
    batch: int, epochs: int, logs: str, saves: str, first: int, expected: tuple[int, int, int, int]
) -> None:
    events = host_events(
        Length.of(1_281_167, batch, epochs=epochs),
        EventOptions(
            logs_per_epoch=Fraction(logs), checkpoints_per_epoch=Fraction(saves), first_checkpoint_epoch=float(first)
        ),
    )
    found = (events.updates_per_log, events.updates_per_checkpoint, events.updates_per_call, events.calls)
    assert found == expected


def test_the_number_of_host_calls_is_exact() -> None:
    length = Length.of(1_000, 10, epochs=1e308)
    assert host_events(length, EventOptions()).calls == length.updates_total // 100


def test_first_checkpoint_epoch_shifts_the_checkpoints() -> None:
    length = Length.of(100, 100, epochs=5)
    events = host_events(
        length,
        EventOptions(logs_per_epoch=Fraction(1), checkpoints_per_epoch=Fraction(1, 3), first_checkpoint_epoch=2.0),
    )
    assert [update for update in range(1, 6) if events.saves_at(update)] == [2, 5]


def test_log_periods_count_over_the_whole_run() -> None:
    events = host_events(CIFAR, EventOptions(logs_per_epoch=Fraction(1, 2), checkpoints_per_epoch=Fraction(1)))
    logged = [update for update in range(1, 4687) if events.logs_at(update, 4686)]
    assert logged == [1562, 3124, 4686]


@settings(max_examples=50)
@given(st.integers(1, 2000), st.integers(1, 20), st.fractions(0, 50))
def test_events_divide_the_epoch_or_the_run(per_epoch: int, epochs: int, frequency: Fraction) -> None:
    period, _ = updates_per_event(frequency, per_epoch, Fraction(epochs), "logs")
    if frequency == 0:
        assert period == 0
    elif frequency >= 1:
        assert per_epoch % period == 0
    else:
        assert (per_epoch * epochs) % period == 0


@pytest.mark.parametrize(
    ("topology", "span", "size", "expected"),
    [
        (Topology(8, 64), 1, 32, 8),
        (Topology(8, 8), 1, 32, 2),
        (Topology(8, 2), 1, 32, 1),
        (Topology(32, 64), 1, 32, 2),
        (Topology(8, 64), 1, 224, 1),
        (Topology(1, 64), 1, 224, 2),
        (Topology(8, 4, 16), 1, 32, 4),
        (Topology(8, 1, 16), 1, 32, 1),
        (Topology(8, 64, 1, 4), 1, 32, 4),
        (Topology(4, 16, 2), 2, 32, 8),
    ],
)
def test_slots_that_share_a_pass(topology: Topology, span: int, size: int, expected: int) -> None:
    found = group_slots(topology, span, size)
    assert found == expected
    assert topology.slots % found == found % span == 0
    assert topology.slots // found >= min(topology.slots // span, 4 * topology.stages)


def test_slots_that_were_asked_to_share_a_pass() -> None:
    assert group_slots(Topology(8, 8), 1, 224, "4") == 4
    for asked in ("3", "16", "0", "many", "²"):
        with pytest.raises(UserError, match="--pass-slots"):
            group_slots(Topology(8, 8), 1, 224, asked)
    with pytest.raises(UserError, match="use 2 or 4 or 8"):
        group_slots(Topology(8, 4, 2), 2, 224, "1")
