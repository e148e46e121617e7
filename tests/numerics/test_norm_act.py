"""The fused norm, addition and activation against PyTorch's separate operations."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conveyor.numerics import norm_act
from conveyor.numerics.native import build
from conveyor.numerics.native import compile as recipe

pytestmark = pytest.mark.skipif(not norm_act.available(), reason="no C compiler here: the separate operations are used")

ACTS = {"none": lambda z: z, "relu": F.relu, "silu": F.silu}


def tensors(seed: int, shape: tuple[int, int, int, int], offset: float = 0.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    n, c, h, w = shape
    maps = [torch.randn(n, c, h, w, generator=generator).to(memory_format=torch.channels_last) for _ in range(3)]
    return [maps[0] + offset, torch.rand(c, generator=generator) + 0.5, torch.randn(c, generator=generator), *maps[1:]]


def both(
    act: str, with_residual: bool, x: Tensor, gamma: Tensor, beta: Tensor, residual: Tensor, dy: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Output, statistics and gradients of the reference (in double) and of the kernel."""
    results = []
    for fused in (False, True):
        kind = torch.float32 if fused else torch.float64
        inputs = [t.detach().to(kind).requires_grad_() for t in (x, gamma, beta, residual)]
        added = inputs[3] if with_residual else None
        if fused:
            y, mean, var = norm_act.norm_act(inputs[0], inputs[1], inputs[2], added, act, 1e-5)
        else:
            mean, var = torch.zeros(x.shape[1], dtype=kind), torch.ones(x.shape[1], dtype=kind)
            z = F.batch_norm(inputs[0], mean, var, inputs[1], inputs[2], True, 1.0, 1e-5)
            y = ACTS[act](z if added is None else z + added)
        y.backward(dy.to(kind))
        gradients = [t.grad for t in inputs[: 4 if with_residual else 3]]
        results.append([y.detach(), mean, var, *gradients])
    return results[0], results[1]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("act", "with_residual"), [("none", False), ("none", True), ("relu", False), ("relu", True), ("silu", False)]
)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 999),
    shape=st.tuples(st.integers(1, 5), st.sampled_from([1, 3, 8, 17, 64]), st.integers(2, 9), st.integers(1, 9)),
)
def test_equal_to_separate_operations(
    act: str, with_residual: bool, seed: int, shape: tuple[int, int, int, int]
) -> None:
    expected, found = both(act, with_residual, *tensors(seed, shape))
    names = ["y", "mean", "var", "dx", "dgamma", "dbeta", "dresidual"]
    for name, reference, result in zip(names, expected, found, strict=False):
        scale = reference.abs().max().clamp_min(1.0)
        error = (result - reference).abs().max() / scale
        assert error < 2e-5, f"{name} is off by {error:.1e}"
        assert result.dim() == 1 or result.is_contiguous(memory_format=torch.channels_last)


def test_a_large_mean_costs_no_accuracy() -> None:
    expected, found = both("none", False, *tensors(1, (4, 8, 16, 16), offset=1000.0))
    torch.testing.assert_close(found[2].double(), expected[2], rtol=1e-4, atol=0)


@pytest.mark.parametrize("act", ["none", "relu", "silu"])
def test_not_a_number_stays_one(act: str) -> None:
    x, gamma, beta, residual, _ = tensors(2, (2, 4, 3, 3))
    residual[0, 1, 2, 2] = float("nan")
    if norm_act.fits(x, residual, act):
        y, _, _ = norm_act.norm_act(x, gamma, beta, residual, act, 1e-5)
        assert torch.isnan(y[0, 1, 2, 2])
    assert norm_act.fits(x, residual, act) == (act != "silu")
    x[1, 3, 0, 0] = float("nan")
    y, mean, _ = norm_act.norm_act(x, gamma, beta, None, act, 1e-5)
    assert torch.isnan(mean[3])
    assert torch.isnan(y[:, 3]).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_each_time(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        values = tensors(3, (8, 32, 24, 24))
        first, second = (both("relu", True, *values)[1] for _ in range(2))
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    finally:
        torch.set_num_threads(before)


def test_which_tensors_fit() -> None:
    x = torch.randn(2, 4, 3, 3)
    assert not norm_act.fits(x)
    last = x.to(memory_format=torch.channels_last)
    assert norm_act.fits(last)
    assert not norm_act.fits(last.double())
    assert not norm_act.fits(last, x)
    assert not norm_act.fits(torch.randn(1, 4, 1, 1).to(memory_format=torch.channels_last))


def test_without_the_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build.library.cache_clear()
    monkeypatch.setenv(build.SWITCH, "0")
    assert not norm_act.available()
    build.library.cache_clear()
    monkeypatch.setenv(build.SWITCH, "1")
    monkeypatch.setattr(recipe, "BUILT", tmp_path)
    assert not norm_act.available()
    build.library.cache_clear()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("act", "with_residual"), [("none", False), ("none", True), ("relu", False), ("relu", True), ("silu", False)]
)
@settings(max_examples=8)
@given(
    seed=st.integers(0, 999),
    shape=st.tuples(st.integers(1, 5), st.sampled_from([1, 3, 8, 17, 64]), st.integers(2, 9), st.integers(1, 9)),
)
def test_equal_to_the_bit_to_the_operations_one_after_the_other(
    act: str, with_residual: bool, kind: torch.dtype, seed: int, shape: tuple[int, int, int, int]
) -> None:
    """Norm, sum and activation each round their result, forward and backward: a network may be cut between them."""
    x, gamma, beta, residual, dy = tensors(seed, shape)
    results = []
    for fused in (True, False):
        inputs = [x.to(kind, copy=True), gamma.clone(), beta.clone(), residual.to(kind, copy=True)]
        for one in inputs:
            one.requires_grad_()
        added = inputs[3] if with_residual else None
        if fused:
            y, *_ = norm_act.norm_act(*inputs[:3], added, act, 1e-5)
        else:
            z, *_ = norm_act.norm_act(*inputs[:3], None, "none", 1e-5)
            z = z if added is None else z + added
            y = norm_act.silu(z) if act == "silu" else ACTS[act](z)
        assert y.dtype == kind
        y.backward(dy.to(kind))
        results.append([y.detach(), *(one.grad for one in inputs[: 4 if with_residual else 3])])
    for one, other in zip(*results, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(4, 960, 2, 2), (3, 17, 19, 21), (1, 3, 5, 7)])
def test_silu_has_the_same_bits_for_any_number_of_threads_and_values(shape: tuple[int, int, int, int]) -> None:
    """Whether a value is in a vector, left over from the last one or in too small a tensor for threads."""
    before, (z, _, _, dy, _) = torch.get_num_threads(), tensors(6, shape)
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            given = z.clone().requires_grad_()
            norm_act.silu(given).backward(dy)
            found.append(given.grad)
    finally:
        torch.set_num_threads(before)
    whole = torch.cat([z.permute(0, 2, 3, 1).flatten()] * 9)[None, :, None, None].requires_grad_()
    slopes = torch.cat([dy.permute(0, 2, 3, 1).flatten()] * 9)[None, :, None, None]
    norm_act._Silu.apply(whole).backward(slopes)
    assert whole.grad is not None
    for one in found:
        assert one is not None
        for part in whole.grad.flatten().chunk(9):
            assert torch.equal(one.permute(0, 2, 3, 1).flatten(), part)


@pytest.mark.parametrize(("act", "with_residual"), [("none", False), ("relu", True), ("silu", False)])
def test_bfloat16_against_float64(act: str, with_residual: bool) -> None:
    """The reference sees the same half numbers; what is left is the rounding of each of at most three operations."""
    x, gamma, beta, residual, dy = tensors(4, (4, 16, 9, 7), offset=3.0)
    x, residual, dy = x.bfloat16(), residual.bfloat16(), dy.bfloat16()
    expected, _ = both(act, with_residual, x, gamma, beta, residual, dy)
    inputs = [one.clone().requires_grad_() for one in (x, gamma, beta, residual)]
    y, mean, var = norm_act.norm_act(*inputs[:3], inputs[3] if with_residual else None, act, 1e-5)
    y.backward(dy)
    found = [y.detach(), mean, var, *(one.grad for one in inputs[: 4 if with_residual else 3])]
    torch.testing.assert_close(found[1].double(), expected[1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[2].double(), expected[2], rtol=1e-5, atol=0)
    torch.testing.assert_close(found[0].double(), expected[0], rtol=2**-7, atol=2**-6)
    # Where a sum is next to zero, its rounding may open or close the rectifier: hence the median.
    for gradient, reference in zip(found[3:], expected[3:], strict=True):
        assert gradient is not None
        error = (gradient.double() - reference).abs() / reference.abs().max()
        assert error.median() < 2**-8


def test_bfloat16_rounds_to_nearest_even_and_keeps_what_is_not_finite() -> None:
    """With scale 1 and shift 0 of an inference-like call: bits of y are those of PyTorch's own rounding."""
    generator = torch.Generator().manual_seed(5)
    bits = torch.randint(-(2**31), 2**31 - 1, (4096,), generator=generator, dtype=torch.int64).to(torch.int32)
    values = torch.cat(
        [bits.view(torch.float32), torch.tensor([1e-40, -1e-45, 0.0, -0.0, torch.inf, -torch.inf, 3.4e38])]
    )
    scale, zero, out = values.clone(), torch.zeros_like(values), torch.empty(values.numel(), dtype=torch.bfloat16)
    ones = torch.ones(values.numel(), dtype=torch.bfloat16)
    kernels = build.library("norm_act")
    assert kernels is not None
    pointers = scale.data_ptr(), zero.data_ptr()
    kernels.conveyor_apply_brain(ones.data_ptr(), None, out.data_ptr(), 1, values.numel(), *pointers, 0)
    expected = values.bfloat16()
    nan = values.isnan()
    assert out.isnan().equal(nan)
    # 1 * -0 + 0 is +0 in the kernel's arithmetic, as in any other.
    assert out[~nan].equal(expected[~nan])
