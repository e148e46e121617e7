"""What RandAugment and TrivialAugment draw; the operations themselves are tested in test_operations."""

import torch

from conveyor.data.transform.operations import CODES, change
from conveyor.data.transform.randaugment import OPERATIONS, randaugment, trivialaugment

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
