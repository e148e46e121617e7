"""Compile the kernels once for this processor and load them; without a C compiler there is none, and nothing breaks."""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from conveyor.files import cache_folder

_logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("norm_act.c")
FLAGS = (
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fPIC",
    "-shared",
)
SWITCH = "CONVEYOR_NATIVE"
"""Set to 0 to do without the kernels."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None where they cannot be had."""
    if os.environ.get(SWITCH, "1") == "0" or platform.system() != "Linux":
        return None
    compiler = (
        shutil.which(os.environ.get("CC", "")) or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    )
    if compiler is None:
        _logger.info("no C compiler found: norms and activations run as separate PyTorch operations")
        return None
    try:
        path = _compiled(compiler)
        # torch has loaded its OpenMP runtime by now; the kernels bind to the same one, so there is one set of threads.
        import torch  # noqa: F401

        return _declare(ctypes.CDLL(str(path)))
    except (OSError, subprocess.SubprocessError) as error:
        _logger.warning("the C kernels could not be built (%s): PyTorch's own operations are used instead", error)
        return None


def _compiled(compiler: str) -> Path:
    """The shared library for this source, compiler and processor, from the cache or made now."""
    source = SOURCE.read_bytes()
    key = hashlib.sha256(
        b"\0".join([source, compiler.encode(), " ".join(FLAGS).encode(), _processor().encode()])
    ).hexdigest()
    folder = cache_folder() / "native"
    target = folder / f"norm_act-{key[:20]}.so"
    if target.exists() and _is_ours(target):
        return target
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / "kernel.so"
        result = subprocess.run(
            [compiler, *FLAGS, "-o", str(built), str(SOURCE)], capture_output=True, text=True, timeout=120
        )
        if result.returncode != 0:
            raise OSError(result.stderr.strip().splitlines()[0] if result.stderr.strip() else f"{compiler} failed")
        built.chmod(0o700)
        os.replace(built, target)
    return target


def _is_ours(path: Path) -> bool:
    """Never load a library that somebody else could have written."""
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _declare(found: ctypes.CDLL) -> ctypes.CDLL:
    pointer, size, number = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
    found.conveyor_moments.argtypes = [pointer, size, size, pointer, pointer]
    found.conveyor_moments.restype = number
    found.conveyor_apply.argtypes = [pointer, pointer, pointer, size, size, pointer, pointer, number]
    found.conveyor_apply.restype = None
    found.conveyor_backward.argtypes = [*[pointer] * 5, size, size, *[pointer] * 5, number, pointer, pointer]
    found.conveyor_backward.restype = number
    return found
