"""Batch norm, residual addition and activation as one operation on channels-last tensors on a CPU.

`norm_act(x, gamma, beta, residual, act, eps) -> (y, mean, var)` with the batch's own statistics; var is the unbiased one.
Available where the C kernels are (`available()`); the result equals the separate operations within rounding. Values are
float32, or bfloat16 with float32 arithmetic; those are rounded where the separate operations round, so that a network that
is cut between them computes the same bits.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from conveyor.numerics.native.build import library, run

TYPES = (torch.float32, torch.bfloat16)
"""Types of values that the kernels take."""
ACTIVATIONS = {"none": 0, "relu": 1, "silu": 2}


def available() -> bool:
    """Whether the kernels can be had on this machine."""
    return library("norm_act") is not None


def fits(x: Tensor, residual: Tensor | None = None, act: str = "none") -> bool:
    """Whether the operation can take these: one of `TYPES` on the CPU, channels last, several values per channel.

    A residual goes with ReLU or no activation.
    """
    tensors = (x,) if residual is None else (x, residual)
    return (
        all(
            tensor.dim() == 4
            and tensor.dtype in TYPES
            and tensor.dtype == x.dtype
            and tensor.device.type == "cpu"
            and tensor.is_contiguous(memory_format=torch.channels_last)
            for tensor in tensors
        )
        and x.shape[0] * x.shape[2] * x.shape[3] > 1
        and (residual is None or (residual.shape == x.shape and act != "silu"))
    )


def norm_act(
    x: Tensor, gamma: Tensor, beta: Tensor, residual: Tensor | None, act: str, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """act(gamma (x - mean) / sqrt(var + eps) + beta + residual) and the batch's mean and unbiased variance."""
    y, mean, var = _NormAct.apply(x, gamma, beta, residual, ACTIVATIONS[act], eps)
    return y, mean, var


def silu(x: Tensor) -> Tensor:
    """z sigmoid(z), with the bits that `norm_act` has for it; PyTorch's own where the kernels cannot take x."""
    if not (torch.is_grad_enabled() and fits(x) and available()):
        return torch.nn.functional.silu(x)
    return _Silu.apply(x)


class _Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        y = torch.empty_like(z)
        _run("silu", z, *_pointers(z, y), z.numel())
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        dz = torch.empty_like(z)
        _run("silu_backward", z, *_pointers(z, dy, dz), z.numel())
        return dz


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, residual: Tensor | None, act: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        channels = x.shape[1]
        # mean, 1 / sqrt(var + eps), scale, shift, unbiased variance
        found = torch.empty(5, channels)
        y = torch.empty_like(x)
        tensors, sizes = _pointers(x, residual, y), (x.numel() // channels, channels)
        _run("norm_act", x, *tensors, *sizes, *_pointers(gamma, beta), eps, act, found.data_ptr())
        ctx.save_for_backward(x, gamma, found, y if act == 1 and residual is not None else None)
        ctx.act, ctx.has_residual = act, residual is not None
        statistics = found[0], found[4]
        ctx.mark_non_differentiable(*statistics)
        return y, *statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, found, y = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        channels = x.shape[1]
        mean, inv, scale, shift = (found.data_ptr() + number * channels * found.itemsize for number in range(4))
        dx = torch.empty_like(x)
        # Without an activation the residual's gradient is dy itself.
        dresidual = torch.empty_like(x) if ctx.has_residual and ctx.act != 0 else None
        dgamma, dbeta = torch.empty(channels), torch.empty(channels)
        tensors, sizes = _pointers(x, dy, y, dx, dresidual), (x.numel() // channels, channels)
        moments = mean, inv, gamma.data_ptr(), scale, shift
        _run("backward", x, *tensors, *sizes, *moments, ctx.act, *_pointers(dgamma, dbeta))
        if ctx.has_residual and dresidual is None:
            dresidual = dy
        return dx, dgamma, dbeta, dresidual, None, None


def _run(function: str, like: Tensor, *arguments: Any) -> None:
    """The kernel for values of the type of `like`."""
    run("norm_act", function, *arguments, brain=like.dtype == torch.bfloat16)


def _pointers(*tensors: Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]
