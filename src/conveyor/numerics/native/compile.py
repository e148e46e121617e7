"""Which kernels there are, and how they are compiled: one library for each source and each level of instructions.

Plain Python without imports of ours: the build of the package runs this file by itself (`hatch_build.py`). A library's name
holds a hash of its sources and flags, so one that was made from other sources is never taken.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
BUILT = Path(__file__).parent / "built"
"""Where the build of the package puts libraries: `built/avx512/winograd-0123456789ab.so`."""

# -fno-thread-jumps: it makes branches of the limits of a sigmoid, which then costs 2.6 times the time.
_USUAL = ("-O3", "-fno-thread-jumps", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
_EXACT = ("-O3", "-ffp-contract=off")
_FINITE = ("-ffinite-math-only", "-fno-signed-zeros")
_SAID = (*_USUAL, "-ffp-contract=off")
"""Products and sums are joined where the source says so: see `FMA` in sums.h."""
SOURCES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "norm_act": ("numerics/native/norm_act.c", _SAID),
    **{name: (f"numerics/native/{name}.c", _USUAL) for name in ("group_norm", "depthwise", "winograd", "rounding")},
    "augment": ("data/native/augment.c", (*_EXACT, "-fopenmp", "-fno-math-errno", "-fno-trapping-math", *_FINITE)),
    "jpeg_crop": ("data/native/jpeg_crop.c", (*_EXACT, "-Wl,--no-as-needed", "-ldl")),
}
"""Kernels by name: the source file in the package, and its flags."""
LEVELS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "x86_64": {
        "avx512-vbmi": ("-march=x86-64-v4", "-mavx512vbmi", "-mprefer-vector-width=512"),
        "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
        "avx2": ("-march=x86-64-v3",),
        "baseline": ("-march=x86-64",),
    },
    "aarch64": {"baseline": ()},
}
"""Levels of instructions of each kind of processor, best first, and their flags. NEON is part of every aarch64."""
_V4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "fma", "bmi2", "f16c"}
ONLY = {"avx512-vbmi": {"augment"}}
"""Levels that are made for some kernels alone: permutations of bytes, which no other kernel needs."""
NEEDS = {
    "avx512-vbmi": {*_V4, "avx512vbmi"},
    "avx512": _V4,
    "avx2": {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"},
}
"""The instruction sets that a level needs, by the system's names."""


def find_compiler() -> str | None:
    """The C compiler: `$CC`, cc, gcc or clang."""
    names = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    return next((found for found in map(shutil.which, names) if found), None)


def flags(name: str, level: str) -> list[str]:
    """All flags of a library."""
    return [*SOURCES[name][1], *LEVELS[platform.machine()][level], "-fPIC", "-shared"]


def file_name(name: str, level: str) -> str:
    """The file name of a library that was made from the sources as they are now."""
    source = PACKAGE / SOURCES[name][0]
    texts = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")))]
    key = hashlib.sha256(b"\0".join([*texts, " ".join(flags(name, level)).encode()])).hexdigest()
    return f"{name}-{key[:12]}.so"


def make(compiler: str, name: str, level: str, target: Path) -> None:
    """Compile one library; an OSError says in the compiler's words why it could not be done."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / "kernel.so"
        command = [compiler, *flags(name, level), "-o", str(made), str(PACKAGE / SOURCES[name][0])]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        except subprocess.SubprocessError as error:
            raise OSError(str(error)) from None
        if result.returncode != 0:
            raise OSError(next(iter(result.stderr.strip().splitlines()), f"{compiler} failed"))
        os.replace(made, target)


def make_all() -> dict[str, str]:
    """Compile everything for this kind of processor into `BUILT`; what failed, by `level/name`, and why."""
    compiler = find_compiler()
    if compiler is None:
        return {"all": "no C compiler found"}
    wanted = {
        BUILT / level / file_name(name, level): (name, level)
        for level in LEVELS.get(platform.machine(), {})
        for name in SOURCES
        if name in ONLY.get(level, SOURCES)
    }
    for old in set(BUILT.glob("*/*.so")) - wanted.keys():
        old.unlink()
    failed: dict[str, str] = {}

    def one(target: Path) -> None:
        name, level = wanted[target]
        try:
            make(compiler, name, level, target)
        except OSError as error:
            failed[f"{level}/{name}"] = str(error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, (target for target in wanted if not target.exists())))
    return failed
