"""When a run ends before its last update: time, accuracy, patience."""

import enum
import math
import time
from dataclasses import dataclass, field
from typing import Any

from conveyor.options import Options
from conveyor.options.units import seconds


class Reason(enum.StrEnum):
    """Why a run ended; the values stand in `result.json`."""

    DONE = "done"
    TARGET = "target reached"
    PATIENCE = "patience"
    TIME = "time"
    INTERRUPTED = "interrupted"
    CALLBACK = "stopped by a callback"
    FOLDER_GONE = "folder gone"
    FAILED = "failed"
    START_AGAIN = "to be started again"
    """By the launcher, in order to go on: leaves no trace in the run's files."""

    @property
    def to_be_continued(self) -> bool:
        """Whether the run was asked to leave, so that the rest of it is still to be done."""
        return self in (Reason.INTERRUPTED, Reason.TIME)


@dataclass(slots=True)
class Stopping:
    """The rules and what they need to remember; `state` goes into the checkpoint."""

    max_seconds: float | None
    target_accuracy: float | None
    patience: int | None
    best_accuracy: float = -1.0
    """At `best_update`."""
    best_score: float = -math.inf
    """The figure of `--best-by` there, as `records.score` has it: more is better."""
    best_update: int = -1
    without_better: int = 0
    seconds_before: float = 0.0
    """Training time of the parts of the run before this one."""
    _started: float = field(default_factory=time.monotonic)

    @classmethod
    def from_options(cls, options: Options) -> "Stopping":
        limit = options.length.max_time
        return cls(
            max_seconds=None if limit is None else seconds(limit),
            target_accuracy=options.length.target_accuracy,
            patience=options.length.patience,
        )

    def start(self) -> None:
        """Training time of this part of the run counts from now on."""
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Training time over all parts of the run."""
        return self.seconds_before + time.monotonic() - self._started

    def out_of_time(self) -> bool:
        """Whether this part of the run has used up `--max-time`."""
        return self.max_seconds is not None and time.monotonic() - self._started >= self.max_seconds

    def judge(self, accuracy: float, update: int, score: float | None = None) -> Reason | None:
        """Take note of a validation; the reason to stop, if it is one. `accuracy` in percent, `score` by default the same."""
        score = accuracy if score is None else score
        if score > self.best_score:
            self.best_accuracy, self.best_score, self.best_update, self.without_better = accuracy, score, update, 0
        else:
            self.without_better += 1
        if self.target_accuracy is not None and accuracy >= self.target_accuracy:
            return Reason.TARGET
        if self.patience is not None and self.without_better >= self.patience:
            return Reason.PATIENCE
        return None

    def state(self) -> dict[str, Any]:
        """What a resumed run must know."""
        return {
            "best_accuracy": self.best_accuracy,
            "best_score": self.best_score if self.best_update >= 0 else None,
            "best_update": self.best_update,
            "without_better": self.without_better,
            "seconds": self.seconds,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.best_accuracy = float(state["best_accuracy"])
        self.best_update = int(state["best_update"])
        if self.best_update >= 0:
            known = state.get("best_score")
            self.best_score = float(self.best_accuracy if known is None else known)
        self.without_better = int(state["without_better"])
        self.seconds_before = float(state["seconds"])
