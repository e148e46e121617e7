"""Loss scales: fixed, scheduled, driven by overflow, driven by a histogram."""

import json

import pytest
import torch

from conveyor.errors import UserError
from conveyor.numerics.loss_scale import HistogramLossScale, LossScale, OverflowLossScale, make_loss_scale


def test_fixed() -> None:
    scale = make_loss_scale("128")
    scale.update(False)
    assert (scale.value, scale.dynamic) == (128.0, False)


def test_doubling_in_equal_spans() -> None:
    """16 to 128 over 100 epochs: 25 epochs of each."""
    scale = make_loss_scale("16..128", updates_total=100)
    values = []
    for _ in range(120):
        values.append(scale.value)
        scale.update(False)
    assert values == [16.0] * 25 + [32.0] * 25 + [64.0] * 25 + [128.0] * 45


def test_one_span() -> None:
    assert make_loss_scale("8..8", updates_total=10).value == 8


@pytest.mark.parametrize("text", ["16..100", "128..16", "none", "0", "-3", "inf", "..", "nan"])
def test_mistakes_are_explained(text: str) -> None:
    with pytest.raises(UserError, match=r"loss scale|doubled"):
        make_loss_scale(text)


def test_overflow_halves_and_patience_doubles() -> None:
    scale = OverflowLossScale(1024.0, patience=3)
    assert scale.dynamic
    for found_inf, value in [
        (True, 512),
        (False, 512),
        (False, 512),
        (True, 256),
        (False, 256),
        (False, 256),
        (False, 512),
    ]:
        scale.update(found_inf)
        assert scale.value == value
    assert (scale.updates, scale.skipped) == (7, 2)


def test_overflow_stays_within_bounds() -> None:
    low = OverflowLossScale(1.0)
    low.update(True)
    high = OverflowLossScale(2.0**24, patience=1)
    high.update(False)
    assert (low.value, high.value) == (1.0, 2.0**24)


def run_histogram(scale: HistogramLossScale, gradient: torch.Tensor, updates: int) -> list[float]:
    values = []
    for _ in range(updates):
        scale.update(False, scale.measure([gradient]))
        values.append(scale.value)
    return values


def test_histogram_doubles_every_eighth_update_and_halves_when_values_are_large() -> None:
    small, large = torch.zeros(1000), torch.zeros(1000)
    large[0] = -9000.0
    scale = HistogramLossScale(4.0)
    assert run_histogram(scale, small, 16) == [4.0] * 7 + [8.0] * 8 + [16.0]
    assert run_histogram(scale, large, 8)[-1] == 8.0
    rare = torch.zeros(1_000_000)
    rare[:5] = 9000.0
    assert run_histogram(scale, rare, 8)[-1] == 16.0
    assert run_histogram(HistogramLossScale(2.0**15), small, 8)[-1] == 2.0**15


def test_histogram_counts_can_be_summed_over_stages() -> None:
    scale = HistogramLossScale(4.0, period=1)
    parts = [scale.measure([torch.full((10,), 9000.0)]), scale.measure([torch.zeros(20), torch.zeros(30)])]
    total = sum(part for part in parts if part is not None)
    assert isinstance(total, torch.Tensor)
    assert total.tolist() == [10, 60]
    scale.update(False, total)
    assert scale.value == 2.0


def test_not_finite_counts_as_large() -> None:
    scale = HistogramLossScale(4.0, period=1)
    measured = scale.measure([torch.tensor([float("nan"), float("inf"), 1.0])])
    assert measured is not None
    assert measured.tolist() == [2, 3]


@pytest.mark.parametrize("text", ["8", "4..32", "auto", "histogram"])
def test_state_continues(text: str) -> None:
    def run(scale: LossScale, updates: range) -> list[float]:
        values = []
        for update in updates:
            scale.update(update % 7 == 3 and scale.dynamic, scale.measure([torch.ones(3)]))
            values.append(scale.value)
        return values

    whole = run(make_loss_scale(text, updates_total=40), range(40))
    first = make_loss_scale(text, updates_total=40)
    head = run(first, range(21))
    second = make_loss_scale(text, updates_total=40)
    second.load(json.loads(json.dumps(first.state())))
    assert head + run(second, range(21, 40)) == whole
