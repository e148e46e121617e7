"""The machine's float32 GEMM rate, and training throughput as a share of it.

The rate is measured a few times for about 0.2 s and remembered in the user's cache folder. A convolution is a matrix
product, so this is the upper limit, except for 3x3 kernels that need fewer multiplications
(`numerics/native/winograd.c`).
"""

import platform
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from conveyor.errors import UserError, explained_memory, first_line
from conveyor.files import cache_folder
from conveyor.measure.processor import processor
from conveyor.measure.remembered import key_of, recall, remember
from conveyor.models.clone import evaluating
from conveyor.models.units import layer_multiply_adds
from conveyor.numerics.threads import using_threads
from conveyor.spec import RunSpec
from conveyor.training.meter import wait_for

SIZE = 1024
SECONDS = 0.2
ENOUGH = 5
"""Number of measurements after which the best of them is final."""


def gemm_rate(device: torch.device, threads: int = 0) -> float:
    """Floating-point operations per second of a large float32 matrix product on `device`, a CPU with `threads` threads.

    The best of the first ENOUGH calls' measurements: other work on the machine can only make one too small.
    """
    key, path = machine_key(device, threads), cache_folder() / "gemm.json"
    known = recall(path, key)
    rate, times = known if isinstance(known, list) else (0.0, 0)
    if times >= ENOUGH:
        return rate
    with using_threads(threads or torch.get_num_threads()):
        rate = max(rate, measure(device))
    remember(path, key, [rate, times + 1])
    return rate


def measure(device: torch.device, seconds: float = SECONDS, clock: Callable[[], float] = time.perf_counter) -> float:
    """The best of several products of two SIZE x SIZE matrices: 2 SIZE^3 operations each."""
    a = torch.ones(SIZE, SIZE, device=device)
    b = torch.ones(SIZE, SIZE, device=device)
    out = torch.empty(SIZE, SIZE, device=device)
    torch.mm(a, b, out=out)
    best, end = float("inf"), clock() + seconds
    while True:
        wait_for(device)
        started = clock()
        torch.mm(a, b, out=out)
        wait_for(device)
        now = clock()
        best = min(best, max(now - started, 1e-9))
        if now >= end:
            return 2.0 * SIZE**3 / best


def machine_key(device: torch.device, threads: int) -> str:
    """What the rate depends on: processor or accelerator, threads, library version."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor().name
    return key_of(platform.node(), name, device.type, threads, torch.__version__)


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
    shape = (1, in_channels, image_size, image_size)
    try:
        with explained_memory(), evaluating(model), torch.inference_mode():
            model(torch.zeros(*shape, dtype=dtype))
    except RuntimeError as error:
        raise UserError(
            f"the model cannot take images of shape {list(shape)} ({first_line(error)}): see --model and --image-size"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return 6.0 * total


def share_of_peak(flops: float, spec: RunSpec, device: torch.device) -> Callable[[float], float]:
    """Images per second -> share (0..1) of the GEMM rate of all workers together."""
    # A worker is pinned to its own cores, so one can measure only what is its own.
    most = gemm_rate(device, 0 if device.type == "cuda" else spec.layout.threads) * spec.layout.workers
    return lambda rate: rate * flops / most
