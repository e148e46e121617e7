"""All that changes while a run goes on, as one object that can be saved and restored."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from conveyor.checkpoint.state import State
from conveyor.data.identity import Identity
from conveyor.errors import UserError
from conveyor.options.coerce import to_plain
from conveyor.spec import RunSpec
from conveyor.training.lane import Lane
from conveyor.training.meter import Meter, Timing
from conveyor.training.stopping import Reason, Stopping
from conveyor.training.update import Updater
from conveyor.world import restarts
from conveyor.world.world import World


@dataclass(slots=True)
class Session:
    """A run in memory: what it is (`spec`), where it stands (`update`), and the parts that hold its state."""

    spec: RunSpec
    world: World
    lane: Lane
    updater: Updater
    meter: Meter
    stopping: Stopping
    timing: Timing
    identity: Identity
    """The data as they were when this worker started."""
    flops: float = 0.0
    """Floating-point operations to train on one image; known to the main worker."""
    parameters: int = 0
    """Numbers in the parameters of the whole model."""
    update: int = 0
    """Weight updates done."""
    reason: Reason | None = None
    """Why the run ends before its last update."""
    last_accuracy: float | None = None
    last_score: float | None = None
    """Of the same validation: the figure of `--best-by`, more is better."""
    restarts: int = 0
    """How often the workers were started again because one was lost."""
    updates_repeated: int = 0
    """Updates that had to be computed twice because of that."""
    release: Callable[[], None] | None = None
    """Has what is frozen trained too; called once, at `spec.release`."""
    events_due: bool = False
    """Whether what follows the last update was cut short and is to be done again."""
    validated_at: int = -1
    """The update after which `last_accuracy` was measured."""
    thresholds: tuple[float, ...] | None = None
    """Of a multi-label model: the probability from which on each class is named, as that validation chose them."""

    @property
    def epoch(self) -> float:
        """Epochs done."""
        return self.update / self.spec.length.updates_per_epoch

    def model_state(self) -> dict[str, Tensor]:
        """The whole model under its full names, on every worker of the lane."""
        return self.world.full_state(dict(self.lane.module.state_dict()))

    def progress(self) -> dict[str, Any]:
        """Counts, times and whatever else is not a tensor. Every worker must call it."""
        return {**self._progress(), "meter": self.meter.state()}

    def local_progress(self) -> Callable[[], dict[str, Any]]:
        """What this worker knows of it now, for a call that may come later: a GPU is not waited for before."""
        known, meter = self._progress(), self.meter.local_state()
        return lambda: {**known, "meter": meter()}

    def _progress(self) -> dict[str, Any]:
        return {
            "update": self.update,
            "epoch": self.epoch,
            "updates_total": self.spec.length.updates_total,
            "updates_per_epoch": self.spec.length.updates_per_epoch,
            "layout": str(self.spec.layout),
            "threads": self.spec.layout.threads,
            "half": None if self.spec.half is None else self.spec.half.to_json(),
            "class_names": list(self.identity.class_names),
            "data": self.identity.to_json(),
            "loss_scale": self.updater.loss_scale.state(),
            "timing": dict(self.timing.seconds),
            "stopping": self.stopping.state(),
            "last_accuracy": self.last_accuracy,
            "last_score": self.last_score,
            "validated_at": self.validated_at,
            **({} if self.thresholds is None else {"thresholds": list(self.thresholds)}),
            "job": [restarts.job(), restarts.starts()],
            "restarts": self.restarts,
            "updates_repeated": self.updates_repeated,
        }

    def local_state(self) -> State:
        """The tensors that this worker holds, under their full names; not copied."""
        updater = self.updater
        return State(
            model=dict(self.lane.module.state_dict()),
            optimizer=updater.optimizer.state_dict(),
            averages=updater.ema.state_dict() if updater.ema is not None else {},
            options={name: to_plain(value) for name, value in self.spec.options.flat().items()},
        )

    def state(self) -> State:
        """Everything, for a checkpoint; every worker must call it."""
        state = self.local_state()
        state.progress = self.progress()
        state.model, state.optimizer = self.world.full_state(state.model), self.world.full_state(state.optimizer)
        state.averages = self.world.full_state(state.averages)
        return state

    def load(self, state: State) -> None:
        """Stand where `state` was saved. The model's own weights were loaded when it was built."""
        try:
            self._load(state, state.progress)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as problem:
            words = f"{type(problem).__name__} {problem}".splitlines()[0][:200]
            raise UserError(
                f"the checkpoint at update {state.update} is not one of this run ({words}): use the one before it"
            ) from None

    def _load(self, state: State, progress: dict[str, Any]) -> None:
        if state.update == self.spec.release:
            self.updater.optimizer.load_masters(state.optimizer)
        else:
            self.updater.optimizer.load_state_dict(state.optimizer)
        self.updater.loss_scale.load(progress["loss_scale"])
        if self.updater.ema is not None and state.averages:
            self.updater.ema.load_state_dict(state.averages)
        self.timing.seconds.update({name: _finite(seconds) for name, seconds in progress["timing"].items()})
        self.meter.load(progress["meter"])
        self.stopping.load(progress["stopping"])
        self.last_accuracy = None if progress["last_accuracy"] is None else _finite(progress["last_accuracy"])
        score = progress.get("last_score", self.last_accuracy)
        self.last_score = None if score is None else _finite(score)
        self.validated_at = int(progress["validated_at"])
        self.thresholds = None if (known := progress.get("thresholds")) is None else tuple(map(_finite, known))
        self.update = state.update
        self.events_due = bool(progress.get("events_due", False))
        self.restarts = int(progress.get("restarts", 0))
        self.updates_repeated = int(progress.get("updates_repeated", 0))


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} where a number should be")
    return number
