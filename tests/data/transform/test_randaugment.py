"""What RandAugment and TrivialAugment draw; the operations themselves are tested in test_operations."""

import torch

from conveyor.data.transform.operations import CODES, change
from conveyor.data.transform.randaugment import OPERATIONS, RANDAUGMENT, TRIVIAL, randaugment, step, trivialaugment
from conveyor.numerics import keyed

SIZE = (16, 16)


def test_randaugment_depends_on_seed_epoch_and_sample_alone() -> None:
    images = torch.randint(0, 256, (40, *SIZE, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    whole = randaugment(0, 3, torch.arange(40), SIZE, operations=2, magnitude=9)
    assert whole.shape == (40, 2, 8)
    part = randaugment(0, 3, torch.arange(10, 20), SIZE, operations=2, magnitude=9)
    assert torch.equal(whole[10:20], part)
    assert torch.equal(change(images, whole)[10:20], change(images[10:20], part))
    assert not torch.equal(whole, randaugment(0, 4, torch.arange(40), SIZE, operations=2, magnitude=9))
    factors = whole[whole[..., 0] == CODES.index("brightness")][:, 1]
    torch.testing.assert_close(factors.unique(), torch.tensor([0.73, 1.27], dtype=torch.float64), rtol=0, atol=1e-6)


def test_every_operation_and_strength_of_trivialaugment_is_drawn() -> None:
    plan = trivialaugment(0, 3, torch.arange(15000), SIZE)[:, 0]
    assert set(plan[:, 0].int().tolist()) == {*range(9), CODES.index("nearest")}
    shares = torch.stack([(plan[:, 0] == code).double().mean() for code in (*range(9), CODES.index("nearest"))])
    expected = torch.tensor([1 / len(OPERATIONS)] * 9 + [5 / len(OPERATIONS)], dtype=torch.float64)
    torch.testing.assert_close(shares, expected, rtol=0.15, atol=0)
    drawn = plan[plan[:, 0] == CODES.index("brightness"), 1].unique()
    levels = torch.tensor([1 + 0.99 * level / 30 for level in range(-30, 31)], dtype=torch.float64)
    torch.testing.assert_close(drawn, levels, rtol=0, atol=1e-12)
    assert torch.equal(trivialaugment(0, 3, torch.arange(100, 150), SIZE)[:, 0], plan[100:150])


def test_steps_are_those_of_what_was_drawn() -> None:
    samples = torch.arange(500)
    draws = keyed.uniform(3, "trivialaugment", 1, samples, count=3)
    strength = (draws[:, 1] * 31).floor().double() / 30
    signed = torch.where(draws[:, 2] < 0.5, -strength, strength)
    expected = step((draws[:, 0] * len(OPERATIONS)).long(), signed, TRIVIAL, (32, 48))
    assert torch.equal(trivialaugment(3, 1, samples, (32, 48))[:, 0], expected)
    plan = randaugment(3, 1, samples, (32, 48), operations=2, magnitude=7.5)
    for number in range(2):
        draws = keyed.uniform(3, "randaugment", number, 1, samples, count=2)
        signed = torch.where(draws[:, 1] < 0.5, -0.25, 0.25).double()
        expected = step((draws[:, 0] * len(OPERATIONS)).long(), signed, RANDAUGMENT, (32, 48))
        assert torch.equal(plan[:, number], expected)
    once, again = (randaugment(0, 0, samples[:1], (8, 8), operations=2, magnitude=9.0) for _ in range(2))
    once.zero_()  # the steps to take from are kept, and no plan is a view of them
    assert torch.equal(again, randaugment(0, 0, samples[:1], (8, 8), operations=2, magnitude=9.0))
