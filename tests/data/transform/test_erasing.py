"""Random erasing: the published distribution of boxes, and its purity."""

import math

import torch

from conveyor.data.transform.erasing import boxes, draw, erase
from conveyor.numerics import keyed


def test_boxes_follow_from_their_draws() -> None:
    """The closed form for one draw: area 0.2 of 40 x 60, aspect 1, in the middle of what is free."""
    aspect = (0 - math.log(0.3)) / (math.log(3.3) - math.log(0.3))
    draw = torch.tensor([(0.2 - 0.02) / 0.31, aspect, 0.5, 0.999], dtype=torch.float64)
    side = round(math.sqrt(0.2 * 40 * 60))
    top, left = int(0.5 * (40 - side + 1)), 60 - side
    assert boxes(draw.expand(1, 10, 4), 40, 60).tolist() == [[top, top + side, left, left + side]]


def test_a_box_that_does_not_fit_is_drawn_again() -> None:
    large, small = (
        torch.tensor([1.0, 1.0, 0, 0], dtype=torch.float64),
        torch.tensor([0, 0.5, 0, 0], dtype=torch.float64),
    )
    tries = torch.stack([large] * 3 + [small] * 7).unsqueeze(0)
    # 33 % of 20 x 200 at an aspect of 3.3 is 66 high: too high.
    top, bottom, left, right = boxes(tries, 20, 200)[0].tolist()
    assert (bottom - top) * (right - left) < 0.03 * 20 * 200
    assert boxes(large.expand(1, 10, 4), 20, 200).tolist() == [[0, 0, 0, 0]]


def test_the_boxes_of_many_samples() -> None:
    images = torch.ones(4000, 32, 32, 1)
    erased = erase(images.clone(), draw(1, 0, torch.arange(4000), 0.25, 32, 32))
    share = (erased == 0).float().mean((1, 2, 3))
    hit = share > 0
    assert abs(hit.float().mean().item() - 0.25) < 0.02
    assert share[hit].min() > 0.015
    assert share[hit].max() < 0.345
    assert abs(share[hit].mean().item() - 0.175) < 0.01
    some = draw(1, 0, torch.arange(1000, 1050), 0.25, 32, 32)
    assert torch.equal(erase(images[:50].clone(), some), erased[1000:1050])


def test_one_attempt_at_a_time_or_all_at_once() -> None:
    for height, width in ((32, 32), (8, 40), (1, 1)):
        draws = keyed.uniform(1, "erasing", 2, torch.arange(3000), count=41, dtype=torch.float64)
        expected = boxes(draws[:, 1:].view(-1, 10, 4), height, width) * (draws[:, :1] < 0.5)
        assert torch.equal(draw(1, 2, torch.arange(3000), 0.5, height, width), expected)
