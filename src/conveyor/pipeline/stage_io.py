"""What crosses a cut: tensors as the next worker can receive them.

gloo sends contiguous memory only, and a channels_last tensor is not contiguous in its own order of dimensions. Its
NHWC view is, without a copy: images are sent as [N, H, W, C] and are viewed back on arrival, gradients likewise.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from conveyor.models.clone import evaluating

TO_WIRE = (0, 2, 3, 1)
FROM_WIRE = (0, 3, 1, 2)


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.image = x.dim() == 4
        return x.permute(TO_WIRE).contiguous() if ctx.image else x.contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].permute(FROM_WIRE) if ctx.image else gradients[0]


class _Arrive(torch.autograd.Function):
    """The gradient of a received tensor is sent back, so it must be contiguous too.

    The tensor is copied: the library reuses the memory it was received in, and a stage may begin in place.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.image = x.dim() == 4
        return (x.permute(FROM_WIRE) if ctx.image else x).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0]
        return gradient.permute(TO_WIRE).contiguous() if ctx.image else gradient.contiguous()


def depart(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Tensors of a stage in the form in which they are sent."""
    return tuple(cast(Tensor, _Depart.apply(one)) for one in tensors)


def arrive(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Received tensors in the form that the network uses."""
    return tuple(cast(Tensor, _Arrive.apply(one)) for one in tensors)


def as_tuple(values: Any) -> tuple[Tensor, ...]:
    """What a stage returned, as a tuple."""
    return tuple(values) if isinstance(values, tuple | list) else (values,)


def trace_shapes(stages: Sequence[nn.Module], images: Sequence[int], dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
    """Inputs of each stage and outputs of the last, as tensors on the meta device: nothing is computed.

    Evaluation mode: the shapes are the same, and no statistics or random numbers are touched.
    """
    tensors: tuple[Tensor, ...] = (torch.empty(*images, dtype=dtype, device="meta"),)
    found = [tensors]
    for stage in stages:
        state = {
            name: tensor.detach().to("meta") for name, tensor in [*stage.named_parameters(), *stage.named_buffers()]
        }
        with evaluating(stage), torch.no_grad():
            tensors = as_tuple(torch.func.functional_call(stage, state, tensors))
        found.append(tensors)
    return found


def wire_example(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Meta tensors with the shapes in which `tensors` are sent; floating ones require gradients."""
    return tuple(
        torch.empty(
            [one.shape[axis] for axis in TO_WIRE] if one.dim() == 4 else list(one.shape),
            dtype=one.dtype,
            device="meta",
            requires_grad=one.is_floating_point(),
        )
        for one in tensors
    )
