"""Convolution and matrix product on half numbers with float32 arithmetic, forward and backward.

    y  = round(conv(float(x), float(w)) + float(b))
    dx = round(conv_input_gradient(float(dy), float(w)));  dw, db likewise

x, w, b and dy are half numbers, so every product is exact in float32 and the sums have float32 partials, as on hardware
with native half; there (`half_native`), each of the three runs so unless it was found slower. What is kept for the backward
pass is the half x and the weight, in half precision too if it is used. With half
partials the sum is taken in pieces and rounded after each: pieces of 64 channels, or for the gradient of the weights of
as many samples as have 64 places together.
"""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from conveyor.numerics import context, half_native
from conveyor.numerics import convolution as fast
from conveyor.numerics.convolution import Geometry
from conveyor.numerics.half_policy import HalfPolicy
from conveyor.numerics.rounding import round_nearest

_PARTIAL_TERMS = 64


class Narrowed:
    """A layer's weight in half precision, rounded once for each of its values: once per update."""

    def __init__(self) -> None:
        self._of: weakref.ref[Tensor] | None = None
        self._version = -1
        self._value: Tensor | None = None

    def of(self, weight: Tensor, half: torch.dtype) -> Tensor:
        """`weight` rounded to `half`; no gradient flows back through it."""
        if weight.dtype == half:
            return weight.detach()
        if weight.is_inference():
            return weight.to(half)
        fresh = self._of is not None and self._of() is weight and self._version == weight._version
        if not fresh or self._value is None or self._value.dtype != half:
            # A tensor made in inference mode could not be kept for a backward pass later.
            with torch.inference_mode(False), torch.no_grad():
                self._value = weight.detach().to(half)
            self._of, self._version = weakref.ref(weight), weight._version
        return self._value


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    policy: HalfPolicy,
    label: str,
    narrowed: Narrowed,
) -> Tensor:
    """The convolution of half x [N, C, H, W] with the weights rounded to half."""
    x = x.to(policy.dtype)
    narrow = narrowed.of(weight, x.dtype)
    result: Tensor = _Convolution.apply(x, weight, narrow, bias, geometry, policy, label)
    return _saturated(result, policy) if policy.is_native(x.device) else result


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, policy: HalfPolicy, label: str) -> Tensor:
    """x W^T + b for half x [..., features] with the weights rounded to half."""
    x = x.to(policy.dtype)
    if policy.is_native(x.device):
        weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
        return _saturated(functional.linear(x, weight, bias), policy)
    result: Tensor = _Linear.apply(x, weight, bias, policy, label)
    return result


def rounded(values: Tensor, policy: HalfPolicy, label: str) -> Tensor:
    """float32 values as half numbers; the gradient comes back widened."""
    result: Tensor = _Round.apply(values, policy, label)
    return result


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        narrow: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        policy: HalfPolicy,
        label: str,
    ) -> Tensor:
        ctx.save_for_backward(x, narrow)
        ctx.constants = geometry, policy, label, context.current(), weight.dtype
        if (way := policy.way("forward", x, narrow, geometry)) != "float32":
            added = None if bias is None else bias.to(x.dtype)
            return half_native.forward(x, narrow, added, geometry, winograd=way == "winograd")
        wide_bias = None if bias is None else _widened(bias, x.dtype)
        wide, filters = x.float(), narrow.float()
        if policy.half_partials and geometry.groups == 1:
            parts = (
                functional.conv2d(
                    wide[:, piece], filters[:, piece], wide_bias if first else None, *_arguments(geometry)
                )
                for first, piece in _pieces(x.shape[1], _PARTIAL_TERMS)
            )
            return _half_sum(parts, policy)
        return policy.round(fast.forward(wide, filters, wide_bias, geometry), label, context.current())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        geometry, policy, label, key, weight_type = ctx.constants
        x, narrow = ctx.saved_tensors
        wants_x, wants_weight, _, wants_bias = ctx.needs_input_grad[:4]
        no_more = (None, None, None)
        if policy.half_partials and geometry.groups == 1 and not policy.is_native(x.device):
            g, wide, filters = gradient.float(), x.float(), narrow.float()
            outputs = list(_pieces(narrow.shape[0], _PARTIAL_TERMS))
            samples = list(_pieces(x.shape[0], -(-_PARTIAL_TERMS // max(1, g[0, 0].numel()))))
            parts_x = (fast.input_gradient(g[:, p], wide, filters[p], geometry) for _, p in outputs)
            parts_weight = (fast.weight_gradient(g[p], wide[p], filters, geometry) for _, p in samples)
            parts_bias = (fast.bias_gradient(g[p]) for _, p in samples)
            return (
                _half_sum(parts_x, policy) if wants_x else None,
                _half_sum(parts_weight, policy) if wants_weight else None,
                None,
                _half_sum(parts_bias, policy) if wants_bias else None,
                *no_more,
            )

        def narrowed(value: Tensor, number: int) -> Tensor:
            return policy.round(value, f"{label}/gradient{number}", key)

        dx = dw = db = None
        if wants_x:
            if (way := policy.way("input", x, narrow, geometry)) != "float32":
                dx = half_native.input_gradient(gradient, x, narrow, geometry, winograd=way == "winograd")
            else:
                dx = narrowed(fast.input_gradient(gradient.float(), x.float(), narrow.float(), geometry), 0)
        if wants_weight:
            if (way := policy.way("weight", x, narrow, geometry)) != "float32":
                dw = half_native.weight_gradient(gradient, x, narrow, geometry, winograd=way == "winograd")
            else:
                dw = narrowed(fast.weight_gradient(gradient.float(), x.float(), narrow.float(), geometry), 1)
        if wants_bias:
            db = narrowed(fast.bias_gradient(gradient.float()), 2)
        return dx, None if dw is None else dw.to(weight_type), None, db, *no_more


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, policy: HalfPolicy, label: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.constants = policy, label, context.current()
        wide, matrix = x.float(), _widened(weight, x.dtype)
        wide_bias = None if bias is None else _widened(bias, x.dtype)
        if policy.half_partials:
            parts = (
                functional.linear(wide[..., piece], matrix[:, piece], wide_bias if first else None)
                for first, piece in _pieces(x.shape[-1], _PARTIAL_TERMS)
            )
            return _half_sum(parts, policy)
        return policy.round(functional.linear(wide, matrix, wide_bias), label, context.current())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        policy, label, key = ctx.constants
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        g = gradient.float()
        rows, inputs = g.reshape(-1, g.shape[-1]), x.float().reshape(-1, x.shape[-1])
        dx = g @ _widened(weight, x.dtype) if wants_x else None
        dw = rows.T @ inputs if wants_weight else None
        db = rows.sum(0) if wants_bias else None
        rounded = (
            None if value is None else policy.round(value, f"{label}/gradient{number}", key)
            for number, value in enumerate((dx, dw, db))
        )
        return *rounded, None, None


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, policy: HalfPolicy, label: str) -> Tensor:
        return policy.round(values, label, context.current())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient.float(), None, None


def _widened(weight: Tensor, half: torch.dtype) -> Tensor:
    """The weight's nearest half numbers, in float32."""
    return weight.to(half).float()


def _half_sum(parts: Iterator[Tensor], policy: HalfPolicy) -> Tensor:
    """The sum, rounded to nearest after each part; saturating keeps every partial sum finite."""
    total: Tensor | None = None
    for part in parts:
        total = round_nearest(part if total is None else part.add_(total), policy.dtype, saturate=policy.saturate)
    assert total is not None
    return total


def _pieces(count: int, size: int) -> Iterator[tuple[bool, slice]]:
    """(is the first, slice) of consecutive pieces."""
    for start in range(0, count, size):
        yield start == 0, slice(start, min(start + size, count))


def _arguments(geometry: Geometry) -> tuple[Any, ...]:
    return geometry.stride, geometry.padding, geometry.dilation, geometry.groups


def _saturated(values: Tensor, policy: HalfPolicy) -> Tensor:
    limit = torch.finfo(values.dtype).max
    return values.clamp(-limit, limit) if policy.saturate else values
