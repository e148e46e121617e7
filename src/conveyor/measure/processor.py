"""What this machine's processor is: its name and the instructions that it has, read once from the system. No torch here.

`has("avx512_bf16")` asks for an instruction set by the system's name (Linux: the words of `flags` in /proc/cpuinfo, such as
avx2, avx512f, avx512_bf16, avx512_vnni, amx_tile, amx_bf16, amx_int8). Where the system tells nothing, nothing is there.
"""

import dataclasses
import functools
import platform
from pathlib import Path

_SOURCE = Path("/proc/cpuinfo")


@dataclasses.dataclass(frozen=True, slots=True)
class Processor:
    """The processor as the system describes it."""

    name: str
    """Its model name, or its architecture."""
    flags: frozenset[str]
    text: str
    """All that decides which machine code it runs: name and flags of every kind of core."""

    @property
    def vectors(self) -> str:
        """The widest vectors, of those that matter here: speeds differ by them, names do not."""
        return next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in self.flags), "")


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
    kinds = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return Processor(name or platform.processor() or platform.machine(), flags, "\n".join(kinds) or platform.machine())


def has(flag: str) -> bool:
    """Whether the processor has an instruction set."""
    return flag in processor().flags
