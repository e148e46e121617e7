"""The machine's float32 GEMM rate, measured once for about 0.2 s and remembered in the user's cache folder.

Training throughput is shown as a share of it: a convolution is a matrix product, so this is the roof, but for those
3x3 kernels that need fewer multiplications than the product (`numerics/native/winograd.c`).
"""

import hashlib
import json
import platform
import time
from collections.abc import Callable

import torch

from conveyor.files import cache_folder, write_atomically
from conveyor.training.meter import wait_for

SIZE = 1024
SECONDS = 0.2


def gemm_rate(device: torch.device, threads: int) -> float:
    """Floating-point operations per second of a large float32 matrix product with `threads` threads on `device`."""
    key = machine_key(device, threads)
    path = cache_folder() / "gemm.json"
    try:
        known: dict[str, float] = json.loads(path.read_text())
        if known.get(key, 0) > 0:
            return float(known[key])
    except (OSError, ValueError, AttributeError, TypeError):
        known = {}
    rate = measure(device)
    try:
        write_atomically(path, json.dumps({**known, key: rate}, indent=1))
    except OSError:
        pass  # A cache that cannot be written is measured again next time.
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
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    digest = hashlib.sha256(f"{platform.node()} {name}".encode()).hexdigest()[:12]
    return f"{digest}-{device.type}-{threads}-{torch.__version__}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((line for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
