"""The kernels of this machine, from the package, whose build compiles them; without them PyTorch's operations take their place."""

import ctypes
import functools
import logging
import os
import platform
from pathlib import Path
from typing import Any

from conveyor.measure.processor import processor
from conveyor.numerics.native import compile as recipe

_logger = logging.getLogger(__name__)

SWITCH = "CONVEYOR_NATIVE"
"""Set to 0 to do without the kernels."""


@functools.cache
def library(name: str) -> ctypes.CDLL | None:
    """The kernels of the source file `name`.c, or None where they cannot be had."""
    # torch has loaded its OpenMP runtime by now; the kernels bind to the same one, so there is one set of threads.
    import torch  # noqa: F401

    found = load(name, "PyTorch's own operations take its place")
    return None if found is None else _declare(found, name)


def run(name: str, function: str, *arguments: Any, brain: bool = False) -> None:
    """Call `conveyor_FUNCTION` of `name`.c, which must be there; `brain`: its form for bfloat16 values (see `TWOFOLD`)."""
    kernels = library(name)
    assert kernels is not None, f"{name} needs its C kernels: ask for the library first"
    if getattr(kernels, f"conveyor_{function}{'_brain' if brain else ''}")(*arguments):
        raise MemoryError(f"not enough memory for the kernel {function}")


def load(name: str, otherwise: str) -> ctypes.CDLL | None:
    """The shared library of one source; without it None, and a note that says what happens `otherwise`."""
    try:
        path, _ = find(name)
        return None if path is None else ctypes.CDLL(str(path))
    except OSError as error:
        _logger.warning("the kernels of %s.c cannot be loaded (%s): %s", name, error, otherwise)
        return None


def levels_here() -> list[str]:
    """The levels of instructions that this processor has, best first; none on a system that is not Linux."""
    known = recipe.LEVELS.get(platform.machine(), {}) if platform.system() == "Linux" else {}
    return [level for level in known if recipe.NEEDS.get(level, set()) <= processor().flags]


def find(name: str) -> tuple[Path | None, str]:
    """The library's path and the level of instructions that it is for; or None and why there is none."""
    levels = levels_here()
    if os.environ.get(SWITCH, "1") == "0":
        return None, f"switched off by {SWITCH}=0"
    if not levels:
        return None, "no kernels for this kind of processor or system"
    for level in levels:
        built = recipe.BUILT / level / recipe.file_name(name, level)
        if built.exists():
            return built, level
    return None, "not compiled when the package was built, or its source was changed since: install the package again"


def missing() -> dict[str, str]:
    """The kernels that cannot be had here, and why."""
    found = {name: find(name) for name in recipe.SOURCES}
    return {name: why for name, (path, why) in found.items() if path is None}


_POINTER, _SIZE, _NUMBER, _WORD = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_uint64
FUNCTIONS: dict[str, dict[str, tuple[list[type], type | None]]] = {
    "norm_act": {
        "conveyor_moments": ([_POINTER, _SIZE, _SIZE, _POINTER, _POINTER], _NUMBER),
        "conveyor_silu": ([_POINTER, _POINTER, _SIZE], None),
        "conveyor_silu_backward": ([_POINTER, _POINTER, _POINTER, _SIZE], None),
        "conveyor_apply": ([_POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _NUMBER], None),
        "conveyor_norm_act": (
            [*[_POINTER] * 3, _SIZE, _SIZE, _POINTER, _POINTER, ctypes.c_double, _NUMBER, _POINTER],
            _NUMBER,
        ),
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
    "depthwise": {
        "conveyor_depthwise": ([*[_POINTER] * 3, *[_SIZE] * 6, _NUMBER, *[_SIZE] * 3], _NUMBER),
        "conveyor_depthwise_input": ([*[_POINTER] * 3, *[_SIZE] * 6, _NUMBER, *[_SIZE] * 3], _NUMBER),
    },
    "winograd": {
        "conveyor_winograd": ([*[_POINTER] * 4, *[_SIZE] * 5, _NUMBER], _NUMBER),
        "conveyor_winograd_weights": ([*[_POINTER] * 3, *[_SIZE] * 5], _NUMBER),
    },
    "rounding": {"conveyor_round": ([_POINTER, _POINTER, _SIZE, _WORD, _NUMBER, _NUMBER], None)},
    "augment": {
        "conveyor_augment": (
            [_POINTER, *[_SIZE] * 5, _NUMBER, *[_POINTER] * 3, _SIZE, *[_POINTER] * 4, _SIZE, _POINTER, _NUMBER],
            None,
        )
    },
}
"""Arguments and results of the functions in each source file."""


TWOFOLD = ("norm_act", "group_norm", "depthwise", "winograd")
"""Source files whose functions exist a second time, for bfloat16 values; their names end in `_brain` then."""


def _declare(found: ctypes.CDLL, name: str) -> ctypes.CDLL:
    for function, (arguments, result) in FUNCTIONS[name].items():
        for each in (function, f"{function}_brain") if name in TWOFOLD else (function,):
            getattr(found, each).argtypes = arguments
            getattr(found, each).restype = result
    return found
