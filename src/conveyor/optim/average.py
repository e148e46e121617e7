"""Averages of weights: one that is updated during training, and those of saved checkpoints.

Batch-norm statistics belong to the weights they were taken with. An average of weights therefore carries the same
average of their running mean and variance; using the newest statistics with averaged weights would be wrong.
Integers (counters) are not averaged: the newest counts.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from conveyor.errors import UserError
from conveyor.numerics import foreach


class Ema:
    """V = d V + (1 - d) w after every update, for parameters and norm statistics, in float32.

    The decay starts small, d_t = min(d, t / (9 + t)) in update t = 1, 2, ..., so that the random initial
    weights lose their share quickly; with a `warmup` of u updates d_t = d (1 - exp(-t / u)). The average starts as a
    copy of the model.
    """

    def __init__(self, model: nn.Module, decay: float, warmup: int = 0) -> None:
        self._decay, self._warmup = decay, warmup
        self._sources = dict(model.state_dict())
        self._averages = {
            name: value.detach().to(torch.float32, copy=True) if value.is_floating_point() else value.clone()
            for name, value in self._sources.items()
        }
        floating = [name for name, value in self._sources.items() if value.is_floating_point()]
        self._pairs = [(self._averages[name], self._sources[name]) for name in floating]
        self._counters = [name for name in self._sources if name not in floating]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights after update number `step` (from 1) into the average."""
        decay = self.decay_at(step)
        averages = [average for average, _ in self._pairs]
        sources = [source if source.dtype == torch.float32 else source.float() for _, source in self._pairs]
        if averages:  # a stage of a pipeline may hold no weights
            foreach.lerp_(averages, sources, 1.0 - decay)
        for name in self._counters:
            self._averages[name].copy_(self._sources[name])

    def decay_at(self, step: int) -> float:
        """d_t of update t = `step`, from 1."""
        if self._warmup:
            return self._decay * -math.expm1(-step / self._warmup)
        return min(self._decay, step / (9 + step))

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by the names of the model's state; not copied."""
        return dict(self._averages)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from stored averages; names of other stages are ignored."""
        for name, average in self._averages.items():
            if name not in state:
                raise UserError(f"the checkpoint has no average of {name!r}: resume without --ema-decay")
            average.copy_(state[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights and statistics."""
        own = {name: value.clone() for name, value in self._sources.items()}
        self._put(self._averages)
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, source in self._sources.items():
            source.copy_(values[name])


def average(states: Iterable[Mapping[str, Tensor]], decay: float | None = None) -> dict[str, Tensor]:
    """The mean of state dicts, or with a `decay` d oldest first V = first; V = d V + (1 - d) next.

    Summed in float64, in the types of the last; one is held at a time.
    """
    total: dict[str, Tensor] = {}
    last: Mapping[str, Tensor] = {}
    count = 0
    for count, last in enumerate(states, start=1):  # noqa: B007 - both are used afterwards
        _check_same_tensors(total, last)
        for name, value in _floating(last):
            if name not in total:
                total[name] = value.to(torch.float64, copy=True)
            elif decay is None:
                total[name].add_(value)
            else:
                total[name].mul_(decay).add_(value.double(), alpha=1.0 - decay)
    if not count:
        raise UserError("there is no checkpoint to average: train with checkpoints, or name another folder")
    parts = count if decay is None else 1
    return {
        name: total[name].div_(parts).to(value.dtype) if name in total else value.clone()
        for name, value in last.items()
    }


def _floating(state: Mapping[str, Tensor]) -> Sequence[tuple[str, Tensor]]:
    return [(name, value) for name, value in state.items() if value.is_floating_point()]


def _check_same_tensors(known: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """All checkpoints of an average are of one model."""
    names = {name for name, _ in _floating(state)}
    if known and names != set(known):
        odd = sorted(names ^ set(known))[0]
        raise UserError(f"the checkpoints are of different models: {odd!r} is in one and not in another")
