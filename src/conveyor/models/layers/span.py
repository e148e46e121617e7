"""Batch norm whose moments are taken over the batches of several workers together."""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor


def _per_channel(x: Tensor) -> Tensor:
    return x.view(1, -1, 1, 1)


class _JoinedBatchNorm(torch.autograd.Function):
    """y = weight * xhat + bias, xhat = (x - mean) / sqrt(var + eps), moments over the whole group.

    Forward: the sum and count are summed over the group, then the squared deviations from the joint mean (two passes,
    so a large mean costs no digits). Backward: with g = dL/dy and n the joint number of values per channel,
    dL/dx = weight * invstd * (g - sum(g)/n - xhat * sum(g * xhat)/n), both sums over the group; the gradients of
    weight and bias stay local, since gradients are summed over the workers anyway.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, group: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        values = x.new_full((1,), x.shape[0] * x.shape[2] * x.shape[3], dtype=torch.float32)
        first = torch.cat([x.sum((0, 2, 3), dtype=torch.float32), values])
        dist.all_reduce(first, group=group)
        count = first[-1]
        mean = first[:-1] / count
        centred = x - _per_channel(mean).to(x.dtype)
        squares = centred.square().sum((0, 2, 3), dtype=torch.float32)
        dist.all_reduce(squares, group=group)
        invstd = torch.rsqrt(squares / count + eps)
        normalised = centred.mul_(_per_channel(invstd).to(x.dtype))
        ctx.save_for_backward(normalised, weight, invstd, count)
        ctx.group = group
        unbiased = squares / (count - 1)
        ctx.mark_non_differentiable(mean, unbiased)
        y = torch.addcmul(_per_channel(bias), normalised, _per_channel(weight))
        return y.to(x.dtype), mean, unbiased

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        gradient = gradients[0]
        normalised, weight, invstd, count = ctx.saved_tensors
        sum_gradient = gradient.sum((0, 2, 3), dtype=torch.float32)
        sum_product = (gradient * normalised).sum((0, 2, 3), dtype=torch.float32)
        joint = torch.stack([sum_gradient, sum_product])
        dist.all_reduce(joint, group=ctx.group)
        mean_gradient, mean_product = (joint / count).unbind()
        scale = _per_channel(weight * invstd)
        inner = gradient - _per_channel(mean_gradient) - normalised * _per_channel(mean_product)
        return (
            (scale * inner).to(normalised.dtype),
            sum_product.to(weight.dtype),
            sum_gradient.to(weight.dtype),
            None,
            None,
        )


def joined_batch_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(normalised x, joint mean [C], joint unbiased variance [C]); every member of `group` must call it, in the same order."""
    result = _JoinedBatchNorm.apply(x, weight, bias, eps, group)
    return cast(tuple[Tensor, Tensor, Tensor], result)
