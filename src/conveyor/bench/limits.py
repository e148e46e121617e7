"""The machine's own limits, measured in the same run as what is compared with them, and what an image costs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from conveyor.bench.peer_programs import contestant
from conveyor.bench.records import Sample, ratios, share_of
from conveyor.bench.tables import LIMITS
from conveyor.measure.rounds import Contestant
from conveyor.run.gemm_rate import measure as measure_gemm

GEMM, MEMORY = LIMITS
UNITS = {GEMM: "GFLOP/s", MEMORY: "GB/s"}


def contestants(threads: int, products: int = 1) -> list[Contestant]:
    """The limits as programs that run in the same rounds; they count GFLOP and GB instead of images.

    A turn is `products` matrix products of 17 GFLOP each, and a sum of 0.4 GB.
    """
    return [
        contestant(GEMM, "gemm", {"threads": threads, "products": products}),
        contestant(MEMORY, "bandwidth", {"threads": threads}),
    ]


@dataclass(frozen=True, slots=True)
class Needs:
    """What one image costs: floating-point operations, and bytes moved if layers run one by one."""

    flops: float
    bytes_moved: float

    def shares(self, name: str, rates: Sequence[float], roofs: Mapping[str, Sequence[float]]) -> dict[str, Sample]:
        """Share of each limit that a program's images per second use, in percent, one value per round."""
        needed = {MEMORY: self.bytes_moved / 1e9}
        flops = self.flops / 1e9
        return {
            share_of(limit, name): Sample(
                "%", tuple(100 * needed.get(limit, flops) * each for each in ratios(rates, roof).values)
            )
            for limit, roof in roofs.items()
        }


def needs(model: str, image_size: int, classes: int, *, training: bool) -> Needs:
    """The cost of one image: two operations per multiply-add; every layer's output written once and read once.

    Backward takes twice that: a convolution computes two gradients, the rest moves twice the bytes. Fused layers move
    less, and Winograd's filtering multiplies less, so a share can be above what the machine really did.
    """
    from conveyor.models.registry import build
    from conveyor.models.units import multiply_adds, trace

    with torch.device("meta"):
        units = trace(build(model, num_classes=classes), image_size)
    passes = 3.0 if training else 1.0
    moved = 2.0 * sum(unit.activation_bytes for unit in units)
    return Needs(passes * 2.0 * multiply_adds(model, image_size, classes), passes * moved)


def gemm_rate(threads: int, repeats: int = 5) -> Sample:
    """Float32 operations per second of a large matrix product, in GFLOP/s."""
    torch.set_num_threads(threads)
    return Sample(UNITS[GEMM], tuple(measure_gemm(torch.device("cpu"), 0.4) / 1e9 for _ in range(repeats)))


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
    return Sample(UNITS[MEMORY], tuple(rates[1:]))
