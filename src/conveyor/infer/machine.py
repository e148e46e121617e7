"""This machine: its processor, and how busy it is with other work (a measurement made under load must not be remembered)."""

import functools
import os
import platform
from pathlib import Path
from types import TracebackType

import psutil

QUIET_SHARE = 0.1
"""The machine counts as quiet when others used at most this share of its cores (and at most half a core)."""


class OtherWork:
    """Measures the CPU time that other processes used while the body of a `with` statement ran."""

    def __enter__(self) -> "OtherWork":
        self._busy, self._own = busy_seconds(), _own_seconds()
        self._clock = os.times().elapsed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        elapsed = max(os.times().elapsed - self._clock, 1e-3)
        others = (busy_seconds() - self._busy) - (_own_seconds() - self._own)
        self.others = max(others, 0.0) / elapsed

    others: float = 0.0
    """Cores used by other processes on average."""

    @property
    def quiet(self) -> bool:
        return is_quiet(self.others, os.cpu_count() or 1)


def is_quiet(others: float, cores: int) -> bool:
    """Whether `others` cores of foreign work leave a measurement trustworthy."""
    return others <= min(max(QUIET_SHARE * cores, 0.1), 0.5)


def busy_seconds() -> float:
    """Processor seconds that all programs together have used since the machine started."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Guest time is already part of user time.
    return float(sum(times) - idle - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0))


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


FEATURES = {
    "avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "BF16", "avx512_fp16": "FP16", "avx512_vnni": "VNNI",
    "avx_vnni": "VNNI", "amx_bf16": "AMX-BF16", "amx_int8": "AMX-INT8", "asimd": "NEON", "bf16": "BF16",
    "asimddp": "dot product", "i8mm": "I8MM",
}  # fmt: skip
"""The words of the system for what speeds depend on, and ours."""
FULL_WEIGHTS = {"VNNI", "AMX-INT8", "dot product", "I8MM"}
"""Instructions that add four products of 8-bit numbers in 32 bits; without them pairs are added in 16 bits, and saturate."""
HALF = {"BF16", "AMX-BF16"}


@functools.cache
def features() -> tuple[str, ...]:
    """What the processor has of `FEATURES`, in that order; empty where the system does not tell."""
    try:
        words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return ()
    return tuple(dict.fromkeys(name for word, name in FEATURES.items() if word in words))


def weight_bits() -> int:
    """Bits of an 8-bit model's weights that this processor multiplies without saturation: 8, or 7 in 8."""
    return 8 if FULL_WEIGHTS.intersection(features()) else 7


def multiplies_bfloat16() -> bool:
    return bool(HALF.intersection(features()))


def processor_name() -> str:
    """What the system calls the processor, or its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
