"""How a model's convolutions compute in half on a CPU: measured once on a machine, then stored with the run.

A processor with instructions for a half type is about twice as fast with it, but the library has no kernel for some layers
(grouped ones above all) and falls back to reference code. So each operation of each shape is timed, in half and in float32,
with one thread; one that is clearly slower in half is computed in float32, on the same operands, and its result rounded.
Where half products are only twice as fast as float32 ones, Winograd's filtering, which needs a quarter of them, may be faster
still: it is timed too for the layers that it suits. What was measured is kept in the cache folder: two runs on one machine
never decide differently.
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

MARGINS = {"float32": 1.5, "winograd": 1.15}
"""An operation leaves half if it takes so many times as long there as in another way; near 1 chance would decide."""
IMAGES = {"float32": 2, "winograd": 8}
"""Of a measurement: the choice of float32 is between factors; Winograd's transform of the weights is shared by the images."""
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
    winograd: frozenset[str] = frozenset()
    """Those that go by Winograd's filtering."""

    def to_json(self) -> dict[str, Any]:
        """As it is stored with a run."""
        return {"native": self.native, "wide": sorted(self.wide), "winograd": sorted(self.winograd)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "HalfChoice":
        """A run that was begun before there was Winograd's filtering goes on without it."""
        wide, winograd = (frozenset(map(str, stored.get(name, ()))) for name in ("wide", "winograd"))
        return cls(bool(stored["native"]), wide, winograd)


def choose(layers: Iterable[Layer], half: torch.dtype) -> HalfChoice:
    """The choice for a model with these convolutions on this machine, measured where the cache does not know."""
    if not fast_half(torch.device("cpu"), half):
        return HalfChoice(native=False)
    # What a measurement is valid for: the library, the type, the processor.
    path, key = cache_folder() / "half.json", key_of(torch.__version__, str(half), processor().text, MARGINS)
    known: dict[str, str] = recall(path, key) or {}
    before = len(known)
    found: dict[str, str] = {}
    with using_threads(1):
        for layer in dict.fromkeys(layers):
            ways = _ways(layer, half, known)
            known |= ways
            found |= ways
    if len(known) > before:
        remember(path, key, known)
    wide, winograd = (frozenset(name for name, way in found.items() if way == one) for one in ("float32", "winograd"))
    return HalfChoice(True, wide, winograd)


def _ways(layer: Layer, half: torch.dtype, known: Mapping[str, str]) -> dict[str, str]:
    """How the three operations of a layer are to compute, each by its key: in half, in float32, by Winograd's filtering."""
    input_shape, weight_shape, geometry = layer
    x = torch.empty((1, *input_shape), device="meta")
    names = {
        operation: half_native.key(operation, x, torch.empty(weight_shape, device="meta"), geometry)
        for operation in half_native.OPERATIONS
    }
    if all(name in known for name in names.values()):
        return {name: known[name] for name in names.values()}
    found = dict.fromkeys(names.values(), "half")
    for way, margin in MARGINS.items():
        x, weight, dy = _noise(layer, half, IMAGES[way])
        if way == "winograd" and not half_native.suits_winograd(x, weight, geometry):
            continue
        ours, other = (_operations(x, weight, dy, geometry, one) for one in ("half", way))
        for operation, name in names.items():
            if found[name] == "half" and _is_slower(ours[operation], other[operation], margin):
                found[name] = way
    return found


def _noise(layer: Layer, half: torch.dtype, images: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and the gradient of the result."""
    input_shape, weight_shape, geometry = layer

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape).to(half).contiguous(memory_format=torch.channels_last)

    x, weight = noise(images, *input_shape), noise(*weight_shape)
    return x, weight, torch.randn_like(half_native.forward(x, weight, None, geometry))


def _operations(x: Tensor, weight: Tensor, dy: Tensor, geometry: Geometry, way: str) -> dict[str, Callable[[], Tensor]]:
    """The three operations; in float32 with the widening and rounding that the emulation has around them."""
    if way == "float32":
        return {
            "forward": lambda: convolution.forward(x.float(), weight.float(), None, geometry).to(x.dtype),
            "input": lambda: convolution.input_gradient(dy.float(), x.float(), weight.float(), geometry).to(x.dtype),
            "weight": lambda: convolution.weight_gradient(dy.float(), x.float(), weight.float(), geometry).to(x.dtype),
        }
    winograd = way == "winograd"
    return {
        "forward": lambda: half_native.forward(x, weight, None, geometry, winograd=winograd),
        "input": lambda: half_native.input_gradient(dy, x, weight, geometry, winograd=winograd),
        "weight": lambda: half_native.weight_gradient(dy, x, weight, geometry, winograd=winograd),
    }


def _is_slower(half: Callable[[], Tensor], other: Callable[[], Tensor], margin: float) -> bool:
    """By the processor's time, which other work on the machine hardly changes; the shortest of alternating repeats."""
    best = {half: float("inf"), other: float("inf")}
    for number in range(1 + REPEATS):
        for operation in best:
            started = time.thread_time()
            operation()
            if number:  # the first prepares kernels
                best[operation] = min(best[operation], time.thread_time() - started)
    return best[half] > margin * best[other]
