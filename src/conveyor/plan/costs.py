"""What each unit of a model costs, and what a stage (some consecutive units) costs in time and memory."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Array = npt.NDArray[np.float64]
RECOMPUTE = ("none", "block", "stage")


@dataclass(frozen=True, slots=True)
class Linear:
    """Seconds for a micro-batch of b images: `fixed + per_image * b`."""

    fixed: float = 0.0
    per_image: float = 0.0

    def __call__(self, batch: float) -> float:
        return self.fixed + self.per_image * batch

    def __add__(self, other: "Linear") -> "Linear":
        return Linear(self.fixed + other.fixed, self.per_image + other.per_image)


@dataclass(frozen=True, slots=True)
class UnitCost:
    """One unit (a node of the traced model). Bytes are per image, except the weights'.

    `boundary_bytes` is what crosses if the model is cut right after this unit: every tensor that later units still
    need, so a cut inside a residual block counts the shortcut as well. `block` names the residual block, if any.
    """

    name: str
    forward: Linear
    backward: Linear
    saved_bytes: float = 0.0
    boundary_bytes: float = 0.0
    output_bytes: float = 0.0
    weight_bytes: float = 0.0
    block: str | None = None
    inside: bool = False
    """Whether no stage can begin here (see `models.units.Unit`)."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Units `start` to `stop - 1` with a fixed micro-batch: seconds and bytes of one micro-batch on one worker."""

    start: int
    stop: int
    forward: float
    backward: float
    weight_bytes: float
    saved_bytes: float
    output_bytes: float
    transient_bytes: float

    @property
    def seconds(self) -> float:
        return self.forward + self.backward

    def memory(self, in_flight: int, copies_of_weights: float) -> float:
        """Bytes at the worst moment: weights with gradients and optimiser state, what the micro-batches in flight keep,
        and the largest pair of a tensor and its gradient."""
        return self.weight_bytes * copies_of_weights + self.saved_bytes * in_flight + self.transient_bytes


class Model:
    """The units of a model in order, with running sums, so that any stage's cost is a difference.

    `again` is the price of a second forward pass by kind of recomputation, in units of the first one: it is 1 in theory,
    but the second pass also keeps what the first did not, so a measured one is higher.
    """

    def __init__(self, units: Sequence[UnitCost], input_bytes: float, again: Mapping[str, float] | None = None) -> None:
        self.units = list(units)
        self.input_bytes = input_bytes
        self.again = {"block": 1.0, "stage": 1.0, **(again or {})}
        self._forward = _sums(unit.forward for unit in units)
        self._backward = _sums(unit.backward for unit in units)
        self._in_blocks = _sums(unit.forward if unit.block is not None else Linear() for unit in units)
        self._weights = list(itertools.accumulate((unit.weight_bytes for unit in units), initial=0.0))
        self._tables: dict[str, tuple[_Array, _Array, _Array]] = {}
        self._saved = list(itertools.accumulate((unit.saved_bytes for unit in units), initial=0.0))

    def __len__(self) -> int:
        return len(self.units)

    @property
    def weight_bytes(self) -> float:
        return self._weights[-1]

    def boundary(self, position: int) -> float:
        """Bytes per image that cross a cut before unit `position`; before the first it is the image itself."""
        return self.input_bytes if position == 0 else self.units[position - 1].boundary_bytes

    def seconds(self, start: int, stop: int, batch: int, recompute: str = "none") -> tuple[float, float]:
        """Forward and backward seconds of a stage; recomputation adds a forward pass, or the blocks' part of one."""
        forward = self._forward[stop](batch) - self._forward[start](batch)
        backward = self._backward[stop](batch) - self._backward[start](batch)
        if recompute == "none":
            return forward, backward
        repeated = forward
        if recompute == "block":
            repeated = self._in_blocks[stop](batch) - self._in_blocks[start](batch)
        return forward, backward + self.again[recompute] * repeated

    def stage(self, start: int, stop: int, batch: int, recompute: str = "none") -> StageCost:
        """The cost of units `start` to `stop - 1`."""
        forward, backward = self.seconds(start, stop, batch, recompute)
        kept, again = self._activations(start, stop, recompute)
        return StageCost(
            start,
            stop,
            forward,
            backward,
            weight_bytes=self._weights[stop] - self._weights[start],
            saved_bytes=kept * batch,
            output_bytes=(0.0 if stop == len(self) else self.boundary(stop)) * batch,
            transient_bytes=(again + 2 * self._largest(start, stop)) * batch,
        )

    def memory_tables(self, recompute: str) -> tuple[_Array, _Array, _Array]:
        """For every stage [i, j): weight bytes, and per image the bytes kept and the bytes needed for a moment."""
        if recompute not in self._tables:
            size = len(self) + 1
            weights, kept, moment = np.zeros((size, size)), np.zeros((size, size)), np.zeros((size, size))
            for start in range(size - 1):
                for stop in range(start + 1, size):
                    weights[start, stop] = self._weights[stop] - self._weights[start]
                    kept[start, stop], again = self._activations(start, stop, recompute)
                    moment[start, stop] = again + 2 * self._largest(start, stop)
            self._tables[recompute] = weights, kept, moment
        return self._tables[recompute]

    def _largest(self, start: int, stop: int) -> float:
        return max((unit.output_bytes for unit in self.units[start:stop]), default=0.0)

    def _activations(self, start: int, stop: int, recompute: str) -> tuple[float, float]:
        """Bytes per image (kept from forward to backward, made again for a moment in the backward pass)."""
        saved = self._saved[stop] - self._saved[start]
        if recompute == "none":
            return saved, 0.0
        if recompute == "stage":
            return min(saved, self.boundary(start)), saved
        kept, largest, position = 0.0, 0.0, start
        for block, group in itertools.groupby(self.units[start:stop], key=lambda unit: unit.block):
            members = list(group)
            size = sum(unit.saved_bytes for unit in members)
            if block is None:
                kept += size
            else:
                kept += min(size, self.boundary(position))
                largest = max(largest, size)
            position += len(members)
        return kept, largest


def _sums(values: Iterable[Linear]) -> list[Linear]:
    return list(itertools.accumulate(values, initial=Linear()))
