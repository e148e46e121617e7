"""Which operations of a model's convolutions run in half on a CPU: measured once on a machine, then stored with the run.

A processor with instructions for a half type is about twice as fast with it, but the library has no kernel for some layers
(grouped ones above all) and falls back to reference code. So each operation of each shape is timed, in half and in float32,
with one thread; one that is clearly slower in half is computed in float32, on the same operands, and its result rounded.
What was measured is kept in the cache folder: two runs on one machine never decide differently.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conveyor.files import cache_folder
from conveyor.measure.processor import processor
from conveyor.measure.remembered import key_of, recall, remember
from conveyor.numerics import convolution, half_native
from conveyor.numerics.convolution import Geometry
from conveyor.numerics.half_policy import fast_half
from conveyor.numerics.threads import using_threads

SLOWER = 1.5
"""An operation computes in float32 if half takes so many times as long; near 1 chance would decide."""
IMAGES = 2
"""Of a measurement: the choice is between factors."""
REPEATS = 3

Layer = tuple[tuple[int, ...], tuple[int, ...], Geometry]
"""A convolution by the shapes of its input [C, H, W] and its weight, and its geometry."""


@dataclass(frozen=True, slots=True)
class HalfChoice:
    """How a run computes in half on a CPU."""

    native: bool
    """Whether convolutions run in half at all; otherwise in float32 on rounded operands."""
    wide: frozenset[str] = frozenset()
    """The operations (`half_native.key`) that do not."""

    def to_json(self) -> dict[str, Any]:
        """As it is stored with a run."""
        return {"native": self.native, "wide": sorted(self.wide)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "HalfChoice":
        return cls(bool(stored["native"]), frozenset(map(str, stored["wide"])))


def choose(layers: Iterable[Layer], half: torch.dtype) -> HalfChoice:
    """The choice for a model with these convolutions on this machine, measured where the cache does not know."""
    if not fast_half(torch.device("cpu"), half):
        return HalfChoice(native=False)
    # What a measurement is valid for: the library, the type, the processor.
    path, key = cache_folder() / "half.json", key_of(torch.__version__, str(half), processor().text)
    known: dict[str, bool] = recall(path, key) or {}
    before = len(known)
    found: set[str] = set()
    with using_threads(1):
        for layer in dict.fromkeys(layers):
            for name, slow in _slow_operations(layer, half, known):
                known[name] = slow
                found |= {name} if slow else set()
    if len(known) > before:
        remember(path, key, known)
    return HalfChoice(True, frozenset(found))


def _slow_operations(layer: Layer, half: torch.dtype, known: Mapping[str, bool]) -> Iterable[tuple[str, bool]]:
    """(key, whether it is slower in half) of a layer's three operations."""
    input_shape, weight_shape, geometry = layer
    x = torch.empty((IMAGES, *input_shape), device="meta")
    weight = torch.empty(weight_shape, device="meta")
    names = {operation: half_native.key(operation, x, weight, geometry) for operation in half_native.OPERATIONS}
    if all(name in known for name in names.values()):
        return [(name, known[name]) for name in names.values()]
    narrow, wide = _operations(layer, half, native=True), _operations(layer, half, native=False)
    return [
        (name, known[name] if name in known else _is_slower(narrow[operation], wide[operation]))
        for operation, name in names.items()
    ]


def _operations(layer: Layer, half: torch.dtype, *, native: bool) -> dict[str, Callable[[], Tensor]]:
    """The three operations on noise; in float32 with the widening and rounding that the emulation has around them."""
    input_shape, weight_shape, geometry = layer

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape).to(half).contiguous(memory_format=torch.channels_last)

    x, weight = noise(IMAGES, *input_shape), noise(*weight_shape)
    dy = torch.randn_like(half_native.forward(x, weight, None, geometry))
    way, taken = (half_native, Tensor.detach) if native else (convolution, Tensor.float)
    return {
        "forward": lambda: way.forward(taken(x), taken(weight), None, geometry).to(half),
        "input": lambda: way.input_gradient(taken(dy), taken(x), taken(weight), geometry).to(half),
        "weight": lambda: way.weight_gradient(taken(dy), taken(x), taken(weight), geometry).to(half),
    }


def _is_slower(narrow: Callable[[], Tensor], wide: Callable[[], Tensor]) -> bool:
    """By the processor's time, which other work on the machine hardly changes; the shortest of alternating repeats."""
    best = {narrow: float("inf"), wide: float("inf")}
    for number in range(1 + REPEATS):
        for operation in best:
            started = time.thread_time()
            operation()
            if number:  # the first prepares kernels
                best[operation] = min(best[operation], time.thread_time() - started)
    return best[narrow] > SLOWER * best[wide]
