"""Throughput as a share of the machine's float32 GEMM rate."""

import copy
import logging
from collections.abc import Callable

import torch
from torch import nn

from conveyor.training.peak import gemm_rate
from conveyor.training.spec import RunSpec

_logger = logging.getLogger(__name__)


def training_flops(model: nn.Module, image_size: int, in_channels: int) -> float | None:
    """Floating-point operations to train on one image: 3 x the forward pass (2 per multiply-add).

    Counted on the meta device, so nothing is computed. None for a model that cannot run there.
    """
    from torch.utils.flop_counter import FlopCounterMode

    try:
        shadow = copy.deepcopy(model).to("meta").eval()
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            shadow(torch.empty(1, in_channels, image_size, image_size, device="meta"))
        return 3.0 * float(counter.get_total_flops()) or None
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as problem:
        _logger.debug("operations of the model cannot be counted: %s", problem)
        return None


def share_of_peak(model: nn.Module, spec: RunSpec, device: torch.device) -> Callable[[float], float | None]:
    """Images per second -> share (0..1) of the GEMM rate of all workers together."""
    flops = training_flops(model, spec.image_size, spec.in_channels)
    if flops is None:
        return lambda rate: None
    if device.type == "cuda":
        roof = gemm_rate(device, 0) * spec.layout.workers
    else:
        before, threads = torch.get_num_threads(), spec.layout.threads * spec.layout.workers
        torch.set_num_threads(threads)
        try:
            roof = gemm_rate(device, threads)
        finally:
            torch.set_num_threads(before)
    return lambda rate: rate * flops / roof
