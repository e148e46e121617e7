"""The machine's own limits, measured in the same run as what is compared with them, and what an image costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from conveyor.bench.peer_programs import peer_program
from conveyor.bench.records import Record, Sample, make_record, ratios, share_of
from conveyor.bench.tables import LIMITS
from conveyor.errors import UserError
from conveyor.measure.rounds import Program, run_rounds

GEMM, MEMORY = LIMITS
UNITS = {GEMM: "GFLOP/s", MEMORY: "GB/s"}


def programs(threads: int, products: int = 1) -> list[Program]:
    """The limits as programs that run in the same rounds; they count GFLOP and GB instead of images.

    A turn is `products` matrix products of 17 GFLOP each, and a sum of 0.4 GB.
    """
    return [
        peer_program(GEMM, "gemm", {"threads": threads, "products": products}),
        peer_program(MEMORY, "bandwidth", {"threads": threads}),
    ]


@dataclass(frozen=True, slots=True)
class Needs:
    """What one image costs: floating-point operations, and bytes moved if layers run one by one."""

    flops: float
    bytes_moved: float

    def shares(self, name: str, rates: Sequence[float], limits: Mapping[str, Sequence[float]]) -> dict[str, Sample]:
        """Share of each limit that a program's images per second use, in percent, one value per round."""
        needed = {MEMORY: self.bytes_moved / 1e9}
        flops = self.flops / 1e9
        return {
            share_of(limit, name): Sample(
                "%", tuple(100 * needed.get(limit, flops) * each for each in ratios(rates, most).values)
            )
            for limit, most in limits.items()
        }


def needs(model: str, image_size: int, classes: int, *, training: bool) -> Needs:
    """The cost of one image: two operations per multiply-add; every layer's output written once and read once.

    Backward takes twice that: a convolution computes two gradients, the rest moves twice the bytes. Fused layers move
    less, and Winograd's filtering multiplies less, so a share can be above what the machine really did.
    """
    from conveyor.models.registry import build
    from conveyor.models.units import counted, trace

    with torch.device("meta"):
        units = trace(build(model, num_classes=classes), image_size)
    passes = 3.0 if training else 1.0
    moved = 2.0 * sum(unit.activation_bytes for unit in units)
    return Needs(passes * 2.0 * counted(model, image_size, classes).multiply_adds, passes * moved)


def measure(threads: int, rounds: int = 5) -> Record:
    """The limits alone: float32 operations of a large matrix product, and bytes read and written by `a + b -> c`."""
    measured = run_rounds(programs(threads, products=5), rounds=rounds, steps=1, threads=threads)
    if measured.absent:
        raise UserError(f"a limit could not be measured: {next(iter(measured.absent.values()))}")
    results = {name: Sample(UNITS[name], tuple(rates)) for name, rates in measured.rates.items()}
    return make_record("limits", results, threads=threads)
