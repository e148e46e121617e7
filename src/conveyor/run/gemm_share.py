"""Throughput as a share of the machine's float32 GEMM rate."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from conveyor.models.clone import evaluating
from conveyor.models.units import layer_multiply_adds
from conveyor.run.gemm_rate import gemm_rate
from conveyor.spec import RunSpec


def training_flops(model: nn.Module, image_size: int, in_channels: int) -> float:
    """Floating-point operations to train on one image: 3 x the forward pass, 2 per multiply-add.

    Convolutions and matrix products are counted, by running one empty image through the model (on the CPU).
    """
    total = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        total += layer_multiply_adds(module, tuple(output.shape))

    hooks = [
        module.register_forward_hook(count) for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    try:
        with evaluating(model), torch.inference_mode():
            model(torch.zeros(1, in_channels, image_size, image_size, dtype=dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return 6.0 * total


def share_of_peak(flops: float, spec: RunSpec, device: torch.device) -> Callable[[float], float]:
    """Images per second -> share (0..1) of the GEMM rate of all workers together."""
    # A worker is pinned to its own cores, so one can measure only what is its own.
    roof = gemm_rate(device, 0 if device.type == "cuda" else spec.layout.threads) * spec.layout.workers
    return lambda rate: rate * flops / roof
