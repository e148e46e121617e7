"""What this machine's processor is: its name and the instructions that it has, read once from the system. No torch here.

`has("avx512_bf16")` asks for an instruction set by the system's name (Linux: the words of `flags` in /proc/cpuinfo, such as
avx2, avx512f, avx512_bf16, avx512_vnni, amx_tile, amx_bf16, amx_int8). Where the system does not say, the answer is no.
"""

import dataclasses
import functools
import platform
from pathlib import Path

_SOURCE = Path("/proc/cpuinfo")
_TELLING = ("model name", "cpu family", "model", "flags", "Features", "CPU part")
FEATURES = {
    "avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "BF16", "avx512_fp16": "FP16", "avx512_vnni": "VNNI",
    "avx_vnni": "VNNI", "amx_bf16": "AMX-BF16", "amx_fp16": "AMX-FP16", "amx_int8": "AMX-INT8", "asimd": "NEON", "bf16": "BF16",
    "asimddp": "dot product", "i8mm": "I8MM",
}  # fmt: skip
"""The system's names of features that speeds depend on, and ours."""
FULL_WEIGHTS = {"VNNI", "AMX-INT8", "dot product", "I8MM"}
"""Instructions that add four products of 8-bit numbers in 32 bits; without them pairs are added in 16 bits, and saturate."""
BFLOAT16 = {"BF16", "AMX-BF16"}


@dataclasses.dataclass(frozen=True, slots=True)
class Processor:
    """The processor as the system describes it."""

    name: str
    """Its model name, or its architecture."""
    flags: frozenset[str]
    text: str
    """All that decides which machine code it runs, and how fast: the lines of `_TELLING` of every kind of core."""

    @property
    def label(self) -> str:
        """Name, generation and features, for a record of speed.

        A virtual machine's name says neither: an "AMD EPYC" of family 26 multiplies twice as wide vectors as one of 25.
        """
        lines = [line.partition(":") for line in self.text.splitlines()]
        numbers = {key.strip(): value.strip() for key, _, value in lines}
        generation = [
            f"{word} {numbers[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in numbers
        ]
        return " ".join((self.name, *generation, *self.features))

    @property
    def vectors(self) -> str:
        """The widest vectors, of those that matter here: speeds differ by them, names do not."""
        return next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in self.flags), "")

    @property
    def features(self) -> tuple[str, ...]:
        """What it has of `FEATURES`, in that order."""
        return tuple(dict.fromkeys(name for flag, name in FEATURES.items() if flag in self.flags))


@functools.cache
def processor() -> Processor:
    """The processor of this machine."""
    try:
        lines = _SOURCE.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return parse(lines)


def parse(lines: list[str]) -> Processor:
    """The processor that lines of /proc/cpuinfo describe."""
    entries = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)]
    name = next((value for key, value in entries if key == "model name"), "")
    flags = frozenset(word for key, value in entries if key in ("flags", "Features") for word in value.split())
    kinds = sorted({line for line in lines if line.partition(":")[0].strip() in _TELLING})
    return Processor(name or platform.processor() or platform.machine(), flags, "\n".join(kinds) or platform.machine())


def has(flag: str) -> bool:
    """Whether the processor has an instruction set."""
    return flag in processor().flags


def weight_bits() -> int:
    """Bits of an 8-bit model's weights that this processor multiplies without saturation: 8, or 7 in 8."""
    return 8 if FULL_WEIGHTS.intersection(processor().features) else 7


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions that multiply bfloat16."""
    return bool(BFLOAT16.intersection(processor().features))
