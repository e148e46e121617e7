"""The machine's own limits, measured in the same run as what is compared with them."""

import time

import torch

from conveyor.bench.records import Sample
from conveyor.training.peak import measure as measure_gemm


def gemm_rate(threads: int, repeats: int = 5) -> Sample:
    """Float32 operations per second of a large matrix product, in GFLOP/s."""
    torch.set_num_threads(threads)
    return Sample("GFLOP/s", tuple(measure_gemm(torch.device("cpu"), 0.4) / 1e9 for _ in range(repeats)))


def memory_bandwidth(threads: int, repeats: int = 5, mebibytes: int = 256) -> Sample:
    """Bytes read and written per second by `a + b -> c` on arrays far larger than the caches, in GB/s."""
    torch.set_num_threads(threads)
    a, b = (torch.ones(mebibytes * 2**18) for _ in range(2))
    out = torch.empty_like(a)
    rates = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        torch.add(a, b, out=out)
        rates.append(3 * a.nbytes / (time.perf_counter() - started) / 1e9)
    return Sample("GB/s", tuple(rates[1:]))


def training_flops(model_macs: float) -> float:
    """Floating-point operations of one training image: two per multiply-add, forward and twice that backward."""
    return 6.0 * model_macs


def inference_flops(model_macs: float) -> float:
    return 2.0 * model_macs
