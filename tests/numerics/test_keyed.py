"""Counter-based random numbers: pure, equal on both paths, well spread."""

import pytest
import torch

from conveyor.numerics import keyed


def test_splitmix64_known_sequence() -> None:
    """The published sequence of splitmix64 started at 1234567, through the same finaliser."""
    golden = 0x9E3779B97F4A7C15
    got = [keyed._mix_int(1234567 + golden * step) for step in (1, 2, 3)]
    assert got == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_python_and_tensor_paths_agree() -> None:
    samples = torch.tensor([0, 1, 2, -5, 2**62, -(2**63)])
    folded = keyed.fold(3, 17, samples, 9)
    assert isinstance(folded, torch.Tensor)
    for position, sample in enumerate(samples.tolist()):
        scalar = keyed.fold(3, 17, sample, 9)
        assert isinstance(scalar, int)
        assert folded[position].item() == keyed._signed(scalar)
        assert torch.equal(keyed.bits(3, 17, samples, 9, count=4)[position], keyed.bits(3, 17, sample, 9, count=4))


def test_pure_function_of_the_key() -> None:
    assert torch.equal(keyed.uniform(1, 2, 3, count=5), keyed.uniform(1, 2, 3, count=5))
    assert torch.equal(keyed.uniform(1, 2, 3, count=9)[:5], keyed.uniform(1, 2, 3, count=5))
    batch = keyed.uniform(1, torch.arange(10), count=3)
    assert torch.equal(batch[4:7], keyed.uniform(1, torch.arange(4, 7), count=3))


@pytest.mark.parametrize("other", [(2, 3, 4), (1, 3, 3), (1, 2, 4), (1, 3, 2)])
def test_every_part_of_the_key_matters(other: tuple[int, int, int]) -> None:
    assert not torch.equal(keyed.uniform(1, 2, 3, count=8), keyed.uniform(other[0], *other[1:], count=8))


def test_uniform_is_uniform() -> None:
    drawn = keyed.uniform(7, torch.arange(2000), count=50)
    assert drawn.shape == (2000, 50)
    assert drawn.dtype == torch.float32
    assert drawn.min() >= 0
    assert drawn.max() < 1
    histogram = torch.histc(drawn, bins=20, min=0, max=1)
    chi_square = ((histogram - 5000) ** 2 / 5000).sum().item()
    assert chi_square < 45  # 19 degrees of freedom: p below 0.001 above 43.8
    centred = drawn - 0.5
    neighbours = (centred[1:] * centred[:-1]).mean().item() * 12
    draws = (centred[:, 1:] * centred[:, :-1]).mean().item() * 12
    assert abs(neighbours) < 0.02
    assert abs(draws) < 0.02


def test_double() -> None:
    assert keyed.uniform(1, 2, count=3, dtype=torch.float64).dtype == torch.float64


def test_generator_by_name() -> None:
    first = torch.rand(4, generator=keyed.generator(1, 5, "layer1.conv.weight"))
    again = torch.rand(4, generator=keyed.generator(1, 5, "layer1.conv.weight"))
    other = torch.rand(4, generator=keyed.generator(1, 5, "layer2.conv.weight"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_single_numbers_are_those_of_the_tensors() -> None:
    together = keyed.uniform(3, "box", 5, torch.tensor([0, 77, 1 << 40]), count=4, dtype=torch.float64)
    key = keyed.state_of(3, "box", 5)
    for row, sample in enumerate((0, 77, 1 << 40)):
        state = keyed.state_after(key, sample)
        assert [keyed.uniform_number(state, number) for number in range(4)] == together[row].tolist()
