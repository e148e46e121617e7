"""Group norm as one compiled operation: the formula, the gradients, any thread count, and PyTorch where it does not fit."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conveyor.models.layers.norms import GroupNorm
from conveyor.numerics import group_norm as native
from conveyor.numerics.precision import Precision

needs_kernel = pytest.mark.skipif(native.library("group_norm") is None, reason="no C compiler")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def case(shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32, mean: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, dy = (torch.randn(shape, generator=generator) for _ in range(2))
    gamma, beta = (torch.randn(shape[1], generator=generator) for _ in range(2))
    last = {"memory_format": torch.channels_last}
    return [(2 * x + mean).to(dtype).contiguous(**last), dy.to(dtype).contiguous(**last), gamma, beta]  # type: ignore[call-overload]


def results(tensors: list[Tensor], groups: int, *, compiled: bool) -> list[Tensor]:
    """y, dx, dgamma, dbeta; float64 and the plain layout when not compiled."""
    x, dy, gamma, beta = (one.clone() if compiled else one.double().contiguous() for one in tensors)
    leaves = [x, gamma, beta]
    for leaf in leaves:
        leaf.requires_grad_()
    y = native.group_norm(x, groups, gamma, beta, 1e-5) if compiled else F.group_norm(x, groups, gamma, beta, 1e-5)
    y.backward(dy)
    assert all(leaf.grad is not None for leaf in leaves)
    return [y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@needs_kernel
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("shape", "groups"), [((3, 16, 5, 7), 16), ((2, 24, 16, 16), 4), ((1, 6, 1, 1), 2), ((5, 32, 3, 3), 1)]
)
def test_against_float64(shape: tuple[int, int, int, int], groups: int, dtype: torch.dtype) -> None:
    tensors = case(shape, dtype)
    for got, expected in zip(
        results(tensors, groups, compiled=True), results(tensors, groups, compiled=False), strict=True
    ):
        scale = expected.abs().max().clamp_min(1.0)
        assert ((got.double() - expected).abs().max() / scale).item() < TOLERANCE[dtype]
        assert got.isfinite().all()


@needs_kernel
def test_type_and_layout_stay() -> None:
    x, _, gamma, beta = case((2, 8, 4, 4), torch.float16)
    y = native.group_norm(x, 4, gamma, beta, 1e-5)
    assert (y.dtype, y.stride()) == (x.dtype, x.stride())


@needs_kernel
def test_a_large_mean_costs_no_accuracy() -> None:
    tensors = case((2, 8, 16, 16), mean=1e4)
    got, expected = (results(tensors, 4, compiled=compiled)[0] for compiled in (True, False))
    assert (got.double() - expected).abs().max() < 5e-3


@needs_kernel
def test_threads_do_not_change_a_bit(threads: None) -> None:
    tensors = case((6, 16, 24, 24))
    torch.set_num_threads(1)
    alone = results(tensors, 8, compiled=True)
    torch.set_num_threads(3)
    for one, three in zip(alone, results(tensors, 8, compiled=True), strict=True):
        assert torch.equal(one, three)


@needs_kernel
def test_a_value_that_is_not_finite_stays_visible() -> None:
    tensors = case((2, 8, 4, 4))
    tensors[0][1, 3, 2, 2] = float("nan")
    y = results(tensors, 4, compiled=True)[0]
    assert y[1, 2:4].isnan().all()
    assert y[0].isfinite().all()


def test_what_the_operation_takes() -> None:
    x, _, gamma, beta = case((2, 8, 4, 4))
    assert native.fits(x, gamma, beta) == (native.library("group_norm") is not None)
    assert not native.fits(x.contiguous(), gamma, beta)
    assert not native.fits(x.double(), gamma, beta)
    assert not native.fits(x, None, None)
    assert not native.fits(x, gamma.half(), beta.half())
    assert not native.fits(x.to("meta"), gamma, beta)


@pytest.mark.parametrize("stable", [False, True])
def test_the_layer_is_the_same_in_training_and_validation(stable: bool) -> None:
    layer = GroupNorm(4, 8, stable=stable)
    x = case((2, 8, 6, 6))[0]
    torch.testing.assert_close(layer.train()(x), layer.eval()(x), rtol=1e-5, atol=1e-5)


def test_the_layer_in_half_precision_rounds_once() -> None:
    """round(norm(widened)): the same numbers as PyTorch's norm of the widened values, but for ties of its rounding."""
    layer = GroupNorm(4, 8)
    x = case((4, 8, 16, 16), torch.float16)[0]
    expected = F.group_norm(x.double(), 4, layer.weight.double(), layer.bias.double(), layer.eps).half()
    Precision(torch.float16, torch.float16).apply(layer)
    y = layer.train()(x)
    assert y.dtype == torch.float16
    assert (y != expected).float().mean() < 1e-3
