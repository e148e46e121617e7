"""Group norm of channels-last tensors on a CPU in one compiled operation, forward and backward.

y = gamma (x - mean) / sqrt(var + eps) + beta with the moments of each group of channels of each image. Half numbers are
widened (bfloat16 as they are read), all arithmetic is float32 (sums in double), and the result is rounded once. PyTorch's own kernel takes the
variance as E[x^2] - E[x]^2 for this layout and is several times slower on half numbers and on narrow groups.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from conveyor.numerics.native.build import library, run

_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def fits(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether `group_norm` can take these: on the CPU, channels last, with a float32 scale and shift, and kernels; not in compiled code."""
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype in _TYPES
        and weight is not None
        and bias is not None
        and weight.dtype == bias.dtype == torch.float32
        and x.dim() == 4
        and x.numel() > 0
        and x.is_contiguous(memory_format=torch.channels_last)
        and library("group_norm") is not None
    )


def group_norm(x: Tensor, groups: int, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    """[N, C, H, W] to the same shape, type and memory format; ask `fits` first."""
    result: Tensor = _GroupNorm.apply(x, groups, gamma, beta, eps)
    return result


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
        wide = _readable(x)
        y = torch.empty_like(wide)
        moments = torch.empty(2, x.shape[0], groups)
        mean, inv = moments.unbind()
        sizes = x.shape[0], x.shape[2] * x.shape[3], x.shape[1], groups
        pointers = gamma.data_ptr(), beta.data_ptr(), eps, mean.data_ptr(), inv.data_ptr()
        run("group_norm", "group_norm", wide.data_ptr(), y.data_ptr(), *sizes, *pointers, brain=_is_brain(wide))
        ctx.save_for_backward(x, gamma, moments)
        ctx.sizes = sizes
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, moments = ctx.saved_tensors
        wide = _readable(x)
        dy = gradient.to(wide.dtype).contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(wide)
        dgamma, dbeta = torch.empty_like(gamma), torch.empty_like(gamma)
        mean, inv = moments.unbind()
        values, moments = (wide, dy, dx), (gamma, mean, inv, dgamma, dbeta)
        run(
            "group_norm", "group_norm_backward", *(one.data_ptr() for one in values), *ctx.sizes,
            *(one.data_ptr() for one in moments), brain=_is_brain(wide),
        )  # fmt: skip
        return dx.to(x.dtype), None, dgamma, dbeta, None


def _readable(x: Tensor) -> Tensor:
    """x as the kernels read it: float32 or bfloat16."""
    return x.float() if x.dtype == torch.float16 else x


def _is_brain(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16
