"""Rounding to half: exact where it must be, unbiased where it is random, right at the edges of the formats."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.numerics import keyed, rounding
from conveyor.numerics.rounding import round_nearest, stochastic_round, stochastic_round_into

HALVES = [torch.float16, torch.bfloat16]


def neighbours(value: float, dtype: torch.dtype) -> tuple[float, float]:
    """The numbers of the format just below and just above `value`, from the definition of the format."""
    nearest = torch.tensor(value, dtype=torch.float64).to(dtype)
    if nearest.double().item() == value:
        return value, value
    towards = float("inf") if nearest.double().item() < value else -float("inf")
    if dtype == torch.float16:
        other = float(np.nextafter(np.float16(nearest.item()), np.float16(towards)))
    else:
        bits = nearest.view(torch.int16).item()
        up = (nearest.item() < value) == (nearest.item() > 0 or (nearest.item() == 0 and value > 0))
        other = torch.tensor(bits + (1 if up else -1), dtype=torch.int16).view(torch.bfloat16).item()
        if nearest.item() == 0:
            other = np.copysign(struct.unpack(">f", b"\x00\x01\x00\x00")[0], value)
    low, high = sorted([nearest.double().item(), other])
    return low, high


@pytest.mark.parametrize("dtype", HALVES)
@settings(max_examples=60, deadline=None)
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_result_is_one_of_the_two_neighbours(dtype: torch.dtype, value: float) -> None:
    limit = torch.finfo(dtype).max
    got = set(stochastic_round(torch.full((64,), value), dtype, key=1).double().tolist())
    if abs(value) > limit:
        assert got <= {float(np.copysign(limit, value)), float(np.copysign(np.inf, value))}
        return
    assert got <= set(neighbours(value, dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_number_stays(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    got = stochastic_round(every.float(), dtype, key=1)
    finite = ~every.isnan()
    assert torch.equal(got[finite], every[finite])
    assert torch.equal(got.isnan(), every.isnan())
    assert torch.equal(torch.signbit(got[finite]), torch.signbit(every[finite]))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("value", [1.0003, -3.7001, 1e-3, 5.1e-5, -3.3e-7, 4e-8, 60001.0, 1e-39])
def test_unbiased(dtype: torch.dtype, value: float) -> None:
    """The mean of 200,000 roundings lies within 5 standard errors of the value."""
    count = 200_000
    low, high = neighbours(torch.tensor(value).double().item(), dtype)
    exact = torch.tensor(value).double().item()
    got = stochastic_round(torch.full((count,), value), dtype, key=13).double()
    chance = (exact - low) / (high - low) if high > low else 0.0
    error = (high - low) * (chance * (1 - chance) / count) ** 0.5
    assert abs(got.mean().item() - exact) <= 5 * error + 2.0**-38 * (dtype == torch.float16)


@pytest.mark.parametrize("dtype", HALVES)
def test_overflow_and_special_values(dtype: torch.dtype) -> None:
    limit = torch.finfo(dtype).max
    inf, nan = float("inf"), float("nan")
    quiet = torch.tensor([0x7FFFFFFF, -1, 0x7F800001, 0x7FC00000], dtype=torch.int32).view(torch.float32)
    assert stochastic_round(quiet.repeat(50), dtype, key=1).isnan().all()
    values = torch.tensor([inf, -inf, nan, 3.4e38, -3.4e38, 0.0, -0.0])
    got = stochastic_round(values, dtype, key=1)
    assert got[0] == inf
    assert got[1] == -inf
    assert got[2].isnan()
    assert got[5] == 0
    assert torch.signbit(got[6])
    clamped = stochastic_round(values, dtype, key=1, saturate=True)
    assert clamped[[0, 1, 3, 4]].tolist() == [limit, -limit, limit, -limit]
    assert clamped[2].isnan()


def test_between_the_largest_half_and_infinity() -> None:
    """65520 is half way from 65504 to 65536, which float16 does not have: infinity every second time."""
    got = stochastic_round(torch.full((10_000,), 65520.0), torch.float16, key=1)
    assert set(got.tolist()) == {65504.0, float("inf")}
    assert 0.45 < got.isinf().float().mean() < 0.55


def test_same_key_same_bits_and_any_memory_format() -> None:
    values = torch.randn(5, 7, 3, 3)
    first = stochastic_round(values, torch.float16, key=11)
    assert torch.equal(first, stochastic_round(values, torch.float16, key=11))
    assert not torch.equal(first, stochastic_round(values, torch.float16, key=12))
    last = values.contiguous(memory_format=torch.channels_last)
    rounded = stochastic_round(last, torch.float16, key=11)
    assert rounded.stride() == last.stride()
    assert ((rounded.float() - values).abs() <= 2.0**-10 * values.abs() + 2.0**-24).all()
    part = stochastic_round(values[:, ::2], torch.bfloat16, key=11)
    assert ((part.float() - values[:, ::2]).abs() <= 2.0**-7 * values[:, ::2].abs()).all()


def test_longer_than_one_piece_and_empty() -> None:
    values = torch.randn(200_001)
    got = stochastic_round(values, torch.bfloat16, key=1)
    assert ((got.float() - values).abs() <= 2.0**-7 * values.abs()).all()
    assert stochastic_round(torch.empty(0), torch.float16).numel() == 0


def test_only_to_half() -> None:
    with pytest.raises(TypeError, match="float16 or bfloat16"):
        stochastic_round_into(torch.empty(3), torch.ones(3))


def test_nearest_with_saturation() -> None:
    values = torch.tensor([1e5, -1e5, 1.00048828125, float("inf")])
    assert round_nearest(values, torch.float16).tolist() == [float("inf"), -float("inf"), 1.0, float("inf")]
    assert round_nearest(values, torch.float16, saturate=True).tolist() == [65504.0, -65504.0, 1.0, 65504.0]
    assert round_nearest(torch.tensor([float("inf")]), torch.bfloat16, saturate=True).isfinite().all()


def awkward(count: int) -> torch.Tensor:
    """Values of every exponent, exact halves, ties, the edges of the formats and those that are no numbers."""
    words = keyed.draws(5, 0, count).to(torch.int32)
    edges = [0.0, -0.0, 2.0**-14, 2.0**-24, 2.0**-25, 65504.0, 65519.9, 65520.0, 65536.0, 3.3e38, 1e-45]
    special = torch.tensor([*edges, *(-edge for edge in edges), float("inf"), -float("inf"), float("nan")])
    return torch.cat([words.view(torch.float32), special, torch.randn(count) * 1e-4, torch.randn(count).half().float()])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_kernel_and_torch_operations_give_equal_bits(
    dtype: torch.dtype, saturate: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit but inside a NaN; the length is neither a multiple of four nor of the pieces."""
    if rounding.library("rounding") is None:
        pytest.skip("no C compiler")
    values, before = awkward(70_001), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        compiled = stochastic_round(values, dtype, key=2**63 + 12345, saturate=saturate)
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(rounding, "library", lambda name: None)
    plain = stochastic_round(values, dtype, key=2**63 + 12345, saturate=saturate)
    number = ~values.isnan()
    assert torch.equal(compiled[number].view(torch.int16), plain[number].view(torch.int16))
    assert compiled[~number].isnan().all()
    assert plain[~number].isnan().all()


def test_a_new_key_each_time_when_none_is_given() -> None:
    values = torch.full((1000,), 1.0001)
    assert not torch.equal(stochastic_round(values, torch.float16), stochastic_round(values, torch.float16))
