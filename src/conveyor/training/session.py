"""All that changes while a run goes on, as one object that can be saved and restored."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from conveyor.checkpoint.state import State
from conveyor.options.coerce import to_plain
from conveyor.training.lane import Lane
from conveyor.training.meter import Meter, Timing
from conveyor.training.spec import RunSpec
from conveyor.training.stopping import Stopping
from conveyor.training.update import Updater
from conveyor.training.world import World


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
    flops: float = 0.0
    """Floating-point operations to train on one image; known to the main worker."""
    update: int = 0
    """Weight updates done."""
    reason: str | None = None
    """Why the run ends before its last update."""
    last_accuracy: float | None = None
    validated_at: int = -1
    """The update after which `last_accuracy` was measured."""

    @property
    def epoch(self) -> float:
        """Epochs done."""
        return self.update / self.spec.updates_per_epoch

    def model_state(self) -> dict[str, Tensor]:
        """The whole model under its full names, on every worker of the lane."""
        return self.world.full_state(dict(self.lane.module.state_dict()))

    def state(self) -> State:
        """Everything, for a checkpoint; every worker must call it."""
        updater = self.updater
        progress = {
            "update": self.update,
            "epoch": self.epoch,
            "updates_total": self.spec.updates_total,
            "updates_per_epoch": self.spec.updates_per_epoch,
            "layout": str(self.spec.layout),
            "class_names": list(self.spec.data.class_names),
            "loss_scale": updater.loss_scale.state(),
            "meter": self.meter.state(),
            "timing": dict(self.timing.seconds),
            "stopping": self.stopping.state(),
            "last_accuracy": self.last_accuracy,
            "validated_at": self.validated_at,
            "reason": self.reason,
        }
        return State(
            model=self.model_state(),
            optimizer=self.world.full_state(updater.optimizer.state_dict()),
            averages=self.world.full_state(updater.ema.state_dict()) if updater.ema is not None else {},
            progress=progress,
            options={name: to_plain(value) for name, value in self.spec.options.flat().items()},
        )

    def load(self, state: State) -> None:
        """Stand where `state` was saved. The model's own weights were loaded when it was built."""
        progress: dict[str, Any] = state.progress
        self.updater.optimizer.load_state_dict(state.optimizer)
        self.updater.loss_scale.load(progress["loss_scale"])
        if self.updater.ema is not None and state.averages:
            self.updater.ema.load_state_dict(state.averages)
        self.timing.seconds.update(progress["timing"])
        self.meter.load(progress["meter"])
        self.stopping.load(progress["stopping"])
        self.last_accuracy = progress["last_accuracy"]
        self.validated_at = int(progress["validated_at"])
        self.update = state.update
