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
from collections.abc import Sequence
from pathlib import Path

from conveyor.files import cache_folder
from conveyor.measure.processor import processor

_logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
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
def library(name: str) -> ctypes.CDLL | None:
    """The kernels of the source file `name`.c, or None where they cannot be had."""
    # torch has loaded its OpenMP runtime by now; the kernels bind to the same one, so there is one set of threads.
    import torch  # noqa: F401

    found = load(FOLDER / f"{name}.c", FLAGS, "PyTorch's own operations take its place")
    return None if found is None else _declare(found, name)


def load(source: Path, flags: Sequence[str], otherwise: str) -> ctypes.CDLL | None:
    """The shared library made from `source`; without it None, and a note that says what happens `otherwise`."""
    if os.environ.get(SWITCH, "1") == "0" or platform.system() != "Linux":
        return None
    compiler = (
        shutil.which(os.environ.get("CC", "")) or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    )
    if compiler is None:
        _logger.info("no C compiler found: %s", otherwise)
        return None
    try:
        return ctypes.CDLL(str(_compiled(compiler, source, flags)))
    except (OSError, subprocess.SubprocessError) as error:
        _logger.warning("%s could not be compiled (%s): %s", source.name, error, otherwise)
        return None


def _compiled(compiler: str, source: Path, flags: Sequence[str]) -> Path:
    """The shared library for this source, compiler and processor, from the cache or made now."""
    texts = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")))]
    settings = [compiler.encode(), " ".join(flags).encode(), processor().text.encode()]
    key = hashlib.sha256(b"\0".join([*texts, *settings])).hexdigest()
    folder = cache_folder() / "native"
    target = folder / f"{source.stem}-{key[:20]}.so"
    if target.exists() and _is_ours(target):
        return target
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _logger.info("compiling %s for this processor: some seconds, once", source.name)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / "kernel.so"
        result = subprocess.run(
            [compiler, *flags, "-o", str(built), str(source)], capture_output=True, text=True, timeout=120
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


_POINTER, _SIZE, _NUMBER, _WORD = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_uint64
FUNCTIONS: dict[str, dict[str, tuple[list[type], type | None]]] = {
    "norm_act": {
        "conveyor_moments": ([_POINTER, _SIZE, _SIZE, _POINTER, _POINTER], _NUMBER),
        "conveyor_silu": ([_POINTER, _POINTER, _SIZE], None),
        "conveyor_silu_backward": ([_POINTER, _POINTER, _POINTER, _SIZE], None),
        "conveyor_apply": ([_POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _NUMBER], None),
        "conveyor_backward": (
            [*[_POINTER] * 5, _SIZE, _SIZE, *[_POINTER] * 5, _NUMBER, _POINTER, _POINTER],
            _NUMBER,
        ),
    },
    "group_norm": {
        "conveyor_group_norm": (
            [_POINTER, _POINTER, *[_SIZE] * 4, _POINTER, _POINTER, ctypes.c_double, _POINTER, _POINTER],
            _NUMBER,
        ),
        "conveyor_group_norm_backward": ([*[_POINTER] * 3, *[_SIZE] * 4, *[_POINTER] * 5], _NUMBER),
    },
    "depthwise": {"conveyor_depthwise": ([*[_POINTER] * 3, *[_SIZE] * 6, _NUMBER, *[_SIZE] * 3], _NUMBER)},
    "winograd": {
        "conveyor_winograd": ([*[_POINTER] * 4, *[_SIZE] * 5, _NUMBER], _NUMBER),
        "conveyor_winograd_weights": ([*[_POINTER] * 3, *[_SIZE] * 5], _NUMBER),
    },
    "rounding": {"conveyor_round": ([_POINTER, _POINTER, _SIZE, _WORD, _NUMBER, _NUMBER], None)},
}
"""Arguments and results of the functions in each source file."""


def _declare(found: ctypes.CDLL, name: str) -> ctypes.CDLL:
    for function, (arguments, result) in FUNCTIONS[name].items():
        getattr(found, function).argtypes = arguments
        getattr(found, function).restype = result
    return found
