"""What cuDNN and cuBLAS may do with a run's numbers on a GPU.

float32 means float32: PyTorch itself lets cuDNN's convolutions round their operands to TF32 (10 bits of mantissa) unless told
otherwise; here that is `--tf32`. It also lets cuBLAS add parts of a sum of half products as half numbers; here that is
`--half-partials`. Algorithms are chosen by rule, not by `cudnn.benchmark`: each worker would measure for itself, two workers
could choose differently, and so could the same worker after a restart.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from conveyor.options.precision import PrecisionOptions


@contextlib.contextmanager
def gpu_arithmetic(options: PrecisionOptions) -> Iterator[None]:
    """The rules above during the block; a caller from Python gets its own back."""
    products: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    float32 = "tf32" if options.tf32 else "ieee"
    wanted = [
        (products, "fp32_precision", float32),
        (cudnn.conv, "fp32_precision", float32),
        (cudnn, "benchmark", False),
        (cudnn, "deterministic", True),
        *((products, f"allow_{half}_reduced_precision_reduction", options.half_partials) for half in ("fp16", "bf16")),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in wanted]
    try:
        for owner, name, value in wanted:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
