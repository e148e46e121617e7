"""Convolutions in half precision on a processor that has it: against float64, against the emulation, and what decides."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from conveyor.numerics import convolution, half_choice, half_native, half_ops
from conveyor.numerics.convolution import Geometry
from conveyor.numerics.half_choice import HalfChoice
from conveyor.numerics.half_policy import HalfPolicy

LAYERS = {  # in and out channels, kernel, stride, padding, groups
    "1x1": (48, 64, 1, 1, 0, 1),
    "few channels": (16, 24, 1, 1, 0, 1),
    "3x3": (16, 32, 3, 1, 1, 1),
    "wide 3x3": (64, 80, 3, 1, 1, 1),
    "stride": (16, 32, 3, 2, 1, 1),
    "1x1 stride": (16, 32, 1, 2, 0, 1),
    "wide stride": (256, 256, 3, 2, 1, 1),
    "wide 1x1 stride": (256, 320, 1, 2, 0, 1),
    "grouped": (32, 32, 3, 1, 1, 4),
    "depthwise 3": (24, 24, 3, 1, 1, 24),
    "depthwise 3 stride": (24, 24, 3, 2, 1, 24),
    "depthwise 5": (40, 40, 5, 1, 2, 40),
    "depthwise 5 stride": (17, 17, 5, 2, 2, 17),
    "depthwise 7": (8, 8, 7, 1, 3, 8),
}


def case(name: str, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor, Geometry]:
    """x, weight, dy and the geometry."""
    channels, out, kernel, stride, padding, groups = LAYERS[name]
    generator = torch.Generator().manual_seed(len(name))
    geometry = Geometry((stride, stride), (padding, padding), (1, 1), groups, direct=True)
    x, weight = (
        torch.randn(3, channels, 13, 11, generator=generator),
        torch.randn(out, channels // groups, kernel, kernel),
    )
    y = nn.functional.conv2d(x, weight, None, geometry.stride, geometry.padding, geometry.dilation, groups)
    dy = torch.randn(y.shape, generator=generator)
    last = {"memory_format": torch.channels_last}
    return *(one.to(dtype).contiguous(**last) for one in (x, weight, dy)), geometry  # type: ignore[call-overload]


def reference(x: Tensor, weight: Tensor, dy: Tensor, geometry: Geometry) -> list[Tensor]:
    x, weight = x.double().requires_grad_(), weight.double().requires_grad_()
    y = nn.functional.conv2d(x, weight, None, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
    return [y.detach(), *torch.autograd.grad(y, [x, weight], dy.double())]


@pytest.mark.parametrize("name", LAYERS)
def test_against_float64(name: str) -> None:
    x, weight, dy, geometry = case(name)
    found = [
        half_native.forward(x, weight, None, geometry),
        half_native.input_gradient(dy, x, weight, geometry),
        half_native.weight_gradient(dy, x, weight, geometry),
    ]
    for got, expected in zip(found, reference(x, weight, dy, geometry), strict=True):
        assert got.dtype == torch.bfloat16
        # Half of a unit in the last of 8 bits, and float32 sums: what may cancel is bounded by the largest value.
        torch.testing.assert_close(got.double(), expected, rtol=2**-8, atol=1e-5 * float(expected.abs().max()))


def run(policy: HalfPolicy, x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor, geometry: Geometry) -> list[Tensor]:
    leaves = [one.clone().requires_grad_() for one in (x, weight.float(), bias)]
    narrowed = half_ops.Narrowed()
    y = half_ops.convolution(leaves[0], leaves[1], leaves[2], geometry, policy, "layer", narrowed)
    y.backward(dy)
    assert all(leaf.grad is not None for leaf in leaves)
    return [y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("name", LAYERS)
def test_native_and_emulated_differ_by_the_order_of_sums(name: str) -> None:
    """Both round a float32 sum once: they differ by one unit in the last place where the sums fall on both sides."""
    x, weight, dy, geometry = case(name)
    bias = torch.randn(weight.shape[0])
    native, emulated = (
        run(HalfPolicy(dtype=torch.bfloat16, native=way), x, weight, bias, dy, geometry) for way in (True, False)
    )
    for one, other in zip(native, emulated, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one.float(), other.float(), rtol=2**-7, atol=1e-5 * float(other.abs().max()))
        assert (one != other).float().mean() < 0.05


def test_an_operation_that_was_found_slow_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, dy, geometry = case("3x3")
    slow = half_native.key("weight", x, weight, geometry)
    policy = HalfPolicy(dtype=torch.bfloat16, native=True, wide=frozenset({slow}))
    assert [policy.way(one, x, weight, geometry) for one in half_native.OPERATIONS] == ["half", "half", "float32"]
    monkeypatch.setattr(half_native, "weight_gradient", None)
    bias = torch.zeros(weight.shape[0])
    found = run(policy, x, weight, bias, dy, geometry)
    emulated = run(HalfPolicy(dtype=torch.bfloat16, native=False), x, weight, bias, dy, geometry)
    assert torch.equal(found[2], emulated[2])


def test_a_weight_is_rounded_again_only_when_it_has_changed() -> None:
    narrowed, weight = half_ops.Narrowed(), nn.Parameter(torch.randn(4, 4, 1, 1))
    first = narrowed.of(weight, torch.bfloat16)
    assert narrowed.of(weight, torch.bfloat16) is first
    with torch.no_grad():
        weight.detach().add_(1.0)  # as the optimiser does
    second = narrowed.of(weight, torch.bfloat16)
    assert second is not first
    assert torch.equal(second, weight.detach().bfloat16())
    other = nn.Parameter(weight.detach().clone() + 1.0)
    assert torch.equal(narrowed.of(other, torch.bfloat16), other.detach().bfloat16())


def test_the_choice_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path))
    monkeypatch.setattr(half_choice, "fast_half", lambda device, dtype: True)
    asked: list[int] = []

    def slower(half: object, other: object, margin: float) -> bool:
        asked.append(1)
        return len(asked) == 2

    monkeypatch.setattr(half_choice, "_is_slower", slower)
    layer = (3, 8, 8), (4, 3, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 1, direct=True)
    first = half_choice.choose([layer, layer], torch.bfloat16)
    assert first == HalfChoice(True, frozenset({"input 3x8x8 by 4x3x3x3 stride 1 groups 1"}))
    assert half_choice.choose([layer], torch.bfloat16) == first
    assert len(asked) == 3
    assert HalfChoice.from_json(first.to_json()) == first


@pytest.mark.skipif(not convolution.has_winograd(), reason="no compiled Winograd kernels here")
def test_winograd_is_taken_where_it_was_found_faster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path))
    monkeypatch.setattr(half_choice, "fast_half", lambda device, dtype: True)
    monkeypatch.setattr(half_choice, "_is_slower", lambda half, other, margin: margin < 1.5)
    narrow = (3, 8, 8), (4, 3, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 1, direct=True)
    x, weight, _, geometry = case("wide 3x3")
    found = half_choice.choose([narrow, (tuple(x.shape[1:]), tuple(weight.shape), geometry)], torch.bfloat16)
    keys = {half_native.key(one, x, weight, geometry) for one in half_native.OPERATIONS}
    assert found == HalfChoice(True, winograd=frozenset(keys))
    assert HalfChoice.from_json(found.to_json()) == found
    assert HalfChoice.from_json({"native": True, "wide": []}) == HalfChoice(True)


@pytest.mark.skipif(not convolution.has_winograd(), reason="no compiled Winograd kernels here")
def test_winograd_differs_from_the_direct_sum_by_float32_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float64 as closely as the library, in all three operations and with a bias; and only where it was chosen."""
    x, weight, dy, geometry = case("wide 3x3")
    bias = torch.randn(weight.shape[0])
    keys = frozenset(half_native.key(one, x, weight, geometry) for one in half_native.OPERATIONS)
    plain = run(HalfPolicy(dtype=torch.bfloat16, native=True), x, weight, bias, dy, geometry)
    filtered = run(HalfPolicy(dtype=torch.bfloat16, native=True, winograd=keys), x, weight, bias, dy, geometry)
    y, dx, dw = reference(x, weight, dy, geometry)
    y = y + bias.bfloat16().double().view(-1, 1, 1)
    for one, other, exact in zip(filtered, plain, (y, dx, dw), strict=False):
        torch.testing.assert_close(one.double(), exact, rtol=2**-8, atol=1e-5 * float(exact.abs().max()))
        share = (one != other).float().mean()
        assert 0 < share < 0.05


def test_without_instructions_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_choice, "fast_half", lambda device, dtype: False)
    assert half_choice.choose([], torch.bfloat16) == HalfChoice(native=False)


def test_a_weight_is_rounded_once_for_each_of_its_values() -> None:
    """Once per update, however many micro-batches read it; the update, in place or not, is seen."""
    narrowed, weight = half_ops.Narrowed(), torch.randn(4, 3, 3, 3, requires_grad=True)
    first = narrowed.of(weight, torch.bfloat16)
    assert narrowed.of(weight, torch.bfloat16) is first
    with torch.no_grad():
        weight.add_(1)
    second = narrowed.of(weight, torch.bfloat16)
    assert torch.equal(second, weight.detach().to(torch.bfloat16))
    assert narrowed.of(weight, torch.bfloat16) is second
    assert narrowed.of(weight, torch.float16).dtype == torch.float16
