"""Colour jitter: parts, order and strengths; the parts themselves are tested in test_operations."""

import pytest
import torch

from conveyor.data.transform.jitter import ORDERS, PARTS, jitter
from conveyor.data.transform.operations import CODES, change
from conveyor.errors import UserError
from conveyor.numerics import keyed
from conveyor.options.units import jitter_reaches


def test_parts_come_in_the_order_that_was_drawn() -> None:
    reach = (0.4, 0.3, 0.2, 0.1)
    plan = jitter(5, 2, torch.arange(50), reach)
    draws = keyed.uniform(5, "jitter", 2, torch.arange(50), count=5).double()
    for sample in range(50):
        for place, part in enumerate(ORDERS[int(draws[sample, 4] * 24)].tolist()):
            u = draws[sample, part].item()
            value = -0.1 + u * 0.2 if part == 3 else 1 - reach[part] + u * 2 * reach[part]
            assert CODES[int(plan[sample, place, 0])] == PARTS[part]
            assert plan[sample, place, 1].item() == pytest.approx(value, abs=1e-12)


def test_an_image_depends_on_its_sample_alone() -> None:
    whole = jitter(0, 1, torch.arange(6), (0.4,))
    assert torch.equal(whole[2:4], jitter(0, 1, torch.arange(2, 4), (0.4,)))
    assert not torch.equal(whole, jitter(0, 2, torch.arange(6), (0.4,)))
    assert (whole[..., 0] == CODES.index("identity")).sum() == 6, "no hue was asked for"
    grey = torch.full((2, 4, 4, 1), 90, dtype=torch.uint8)
    assert change(grey, jitter(0, 0, torch.arange(2), (0.4, 0.4, 0.4, 0.5))).shape == grey.shape


def test_strong_reaches_stop_at_zero() -> None:
    plan = jitter(0, 0, torch.arange(300), (1.5,))
    values = plan[plan[..., 0] > 0][:, 1]
    assert 0 <= values.min() < 0.1
    assert 2.4 < values.max() <= 2.5


def test_numbers_that_mean_nothing_are_refused() -> None:
    assert jitter_reaches(()) == (0, 0, 0, 0)
    assert jitter_reaches((0.4,)) == (0.4, 0.4, 0.4, 0)
    for given in ((0.1, 0.2), (0.1, 0.1, 0.1, 0.6)):
        with pytest.raises(UserError, match="one number"):
            jitter_reaches(given)
