"""Automatic splits."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor import models
from conveyor.errors import UserError
from conveyor.models import splits, units
from conveyor.pipeline.balance import automatic_splits, balanced, cost


@given(
    work=st.lists(st.integers(0, 20), min_size=3, max_size=8),
    sending=st.lists(st.integers(0, 5), min_size=8, max_size=8),
    stages=st.integers(1, 3),
)
def test_the_slowest_stage_is_as_fast_as_can_be(work: list[int], sending: list[int], stages: int) -> None:
    allowed = range(1, len(work))

    def slowest(cuts: tuple[int, ...]) -> int:
        bounds = [0, *cuts, len(work)]
        return max(
            sum(work[low:high]) + (sending[low] if low else 0) + (sending[high] if high < len(work) else 0)
            for low, high in itertools.pairwise(bounds)
        )

    found = balanced(work, sending, list(allowed), stages)
    assert slowest(tuple(found)) == min(slowest(cuts) for cuts in itertools.combinations(allowed, stages - 1))


def test_stages_of_a_resnet_are_even_and_cut_where_little_is_sent() -> None:
    found = units.trace(models.build("resnet18", num_classes=10), 64)
    points = automatic_splits(found, 4)
    bounds = [0, *points, len(found)]
    shares = [sum(cost(unit) for unit in found[low:high]) for low, high in itertools.pairwise(bounds)]
    assert max(shares) < 1.5 * sum(shares) / 4
    # Without a price for sending, cuts fall inside blocks, where the shortcut crosses too.
    careless = balanced([cost(unit) for unit in found], [0.0] * len(found), range(1, len(found)), 4)
    assert sum(found[point].crossing_bytes for point in points) < sum(found[point].crossing_bytes for point in careless)


def test_filters_say_where_a_stage_may_begin() -> None:
    found = units.trace(models.build("resnet18", num_classes=10), 64)
    points = automatic_splits(found, 3, include=["layer2", "layer3"], exclude=["bn", "conv2"])
    names = [splits.names_of(found[point]) for point in points]
    assert all(any("layer2" in name or "layer3" in name for name in one) for one in names)
    assert not any("bn" in name or "conv2" in name for one in names for name in one)
    with pytest.raises(UserError, match="widen the filters"):
        automatic_splits(found, 3, include=["no such layer"])


def test_measured_costs_overrule_estimates() -> None:
    found = units.trace(models.build("resnet8", num_classes=10), 32)
    slow_head = [1.0] * (len(found) - 1) + [1000.0]
    assert automatic_splits(found, 2, costs=slow_head) == [len(found) - 1]


def test_what_is_inside_a_block_answers_to_the_names_of_the_block() -> None:
    found = units.trace(models.build("cifar_resnet8", num_classes=10), 32)
    allowed = [unit.path for unit in found if "layer2" not in unit.path and "layer3" not in unit.path]
    slow_middle = [1000.0 if unit.path.startswith("layer2") else 1.0 for unit in found]
    (point,) = automatic_splits(found, 2, exclude=["b2", "b3"], costs=slow_middle)
    assert found[point].path in allowed
    (point,) = automatic_splits(found, 2, include=["b3/0"])
    assert found[point].path.startswith("layer3.0")
    (point,) = automatic_splits(found, 2, include=["conv4_block1"], exclude=["b3/0/conv1"])
    assert found[point].path.startswith("layer3.0.")
    assert found[point].path != "layer3.0.conv1"
