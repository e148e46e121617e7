"""The order of samples: complete, pure, the same on any layout."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.data.order import balanced_order, epoch_order, repeated, slot_indices
from conveyor.topology import Topology


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**40), st.integers(0, 1000))
def test_full_shuffle_is_a_permutation_and_pure(count: int, seed: int, epoch: int) -> None:
    order = epoch_order(count, seed, epoch)
    assert sorted(order.tolist()) == list(range(count))
    np.testing.assert_array_equal(order, epoch_order(count, seed, epoch))


def test_order_is_fixed_for_all_versions() -> None:
    """A checkpoint written today must resume with the same samples tomorrow."""
    assert epoch_order(10, 0, 0).tolist() == [0, 1, 9, 4, 2, 3, 6, 8, 7, 5]
    assert epoch_order(10, 7, 3).tolist() == [4, 7, 0, 6, 2, 1, 9, 3, 5, 8]


def test_epochs_and_seeds_differ() -> None:
    orders = [epoch_order(1000, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for i in range(4):
        for j in range(i):
            assert (orders[i] == orders[j]).mean() < 0.02


def test_every_position_is_reached_evenly() -> None:
    """Over many epochs the first place goes to every sample about equally often."""
    firsts = np.bincount([epoch_order(8, 0, epoch)[0] for epoch in range(800)], minlength=8)
    assert firsts.min() > 60
    assert firsts.max() < 145


def test_stored_order() -> None:
    assert epoch_order(5, 3, 9, "none").tolist() == [0, 1, 2, 3, 4]


def test_shards_stay_within_their_window() -> None:
    shards = [10] * 12
    order = epoch_order(120, 1, 0, "shards", shards=shards, window=3)
    assert sorted(order.tolist()) == list(range(120))
    for first in range(0, 120, 30):
        assert len({sample // 10 for sample in order[first : first + 30].tolist()}) == 3
    other = epoch_order(120, 1, 1, "shards", shards=shards, window=3)
    assert order.tolist() != other.tolist()


def test_shards_must_hold_all_samples() -> None:
    with pytest.raises(ValueError, match="fewer"):
        epoch_order(10, 0, 0, "shards", shards=[4, 5])


@pytest.mark.parametrize("topology", [Topology(4, 3, 2), Topology(24), Topology(2, 12)])
def test_an_update_takes_the_same_samples_however_it_is_cut(topology: Topology) -> None:
    order = epoch_order(100, 0, 0)
    for update in range(4):
        slots = [slot_indices(order, update, slot, topology) for slot in range(topology.slots)]
        np.testing.assert_array_equal(np.concatenate(slots), order[update * 24 : update * 24 + 24])


def test_an_epoch_longer_than_the_set_starts_over() -> None:
    order = epoch_order(10, 0, 0)
    topology = Topology(4, 1, 2)
    taken = np.concatenate([slot_indices(order, update, slot, topology) for update in range(3) for slot in range(2)])
    np.testing.assert_array_equal(taken, np.tile(order, 3)[:24])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 200), st.integers(2, 5), st.integers(1, 64))
def test_repeated_augmentation_shows_each_sample_several_times_in_an_update(count: int, times: int, batch: int) -> None:
    order = epoch_order(count, 3, 1)
    found = repeated(order, times, batch)
    assert len(found) == count == len(set(found.tolist()))
    assert set((found % count).tolist()) == set(order[: -(-count // times)].tolist())
    plain = np.repeat(order, times)
    for first in range(0, count, batch):
        mine = found[first : first + batch]
        assert sorted((mine % count).tolist()) == sorted(plain[first : min(first + batch, count)].tolist())
        assert (np.diff(mine // count) >= 0).all(), "copies are apart: all first ones come first"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=5, max_size=300), st.integers(0, 2**40), st.integers(0, 50))
def test_a_balanced_epoch_has_every_class_equally_often(given_labels: list[int], seed: int, epoch: int) -> None:
    labels = np.array(given_labels)
    found = balanced_order(labels, seed, epoch)
    assert len(found) == len(labels) == len(set(found.tolist())), "every copy has a key of its own"
    shown = np.bincount(labels[found % len(labels)], minlength=5)[np.unique(labels)]
    assert shown.max() - shown.min() <= 1
    for label in np.unique(labels):
        times = np.bincount(found[labels[found % len(labels)] == label] % len(labels), minlength=len(labels))
        times = times[labels == label]
        assert times.max() - times.min() <= 1, "a class shows its images equally often"
    np.testing.assert_array_equal(found, balanced_order(labels, seed, epoch))


def test_balanced_epochs_differ() -> None:
    labels = np.arange(600) % 7 % 3
    one, other = (balanced_order(labels, 0, epoch) for epoch in (0, 1))
    assert (one == other).mean() < 0.05
