"""What cuDNN and cuBLAS may do with a run's numbers on a GPU.

float32 means float32: PyTorch itself lets cuDNN's convolutions round their operands to TF32 (10 bits of mantissa) unless told
otherwise; here that is `--tf32`. Algorithms are chosen by rule, not by `cudnn.benchmark`: each worker would measure for itself,
two workers could choose differently, and so could the same worker after a restart.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def gpu_arithmetic(*, tf32: bool) -> Iterator[None]:
    """The rules above during the block; a caller from Python gets its own back."""
    cudnn: Any = torch.backends.cudnn
    before = torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.benchmark, cudnn.deterministic
    _set(*("tf32" if tf32 else "ieee",) * 2, False, True)
    try:
        yield
    finally:
        _set(*before)


def _set(products: str, convolutions: str, benchmark: bool, deterministic: bool) -> None:
    cudnn: Any = torch.backends.cudnn
    torch.backends.cuda.matmul.fp32_precision = products
    cudnn.conv.fp32_precision, cudnn.benchmark, cudnn.deterministic = convolutions, benchmark, deterministic
