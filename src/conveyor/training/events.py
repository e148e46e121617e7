"""What happens between updates: log points, validations, checkpoints. Counted over the whole run, never within an epoch."""

import logging
import time
from collections.abc import Callable, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any, Protocol

from conveyor.checkpoint import choice, store
from conveyor.checkpoint.lock import RunLock
from conveyor.checkpoint.state import State
from conveyor.checkpoint.writer import BackgroundWriter
from conveyor.monitor.histograms import histograms
from conveyor.monitor.observers import Observer, tell
from conveyor.monitor.records import score
from conveyor.options.units import seconds
from conveyor.training.digest import digest
from conveyor.training.health import check_weights
from conveyor.training.session import Session
from conveyor.training.stopping import Reason


class Validated(Protocol):
    """The result of a validation, as far as training goes by it."""

    @property
    def top1(self) -> float: ...

    @property
    def is_finite(self) -> bool: ...

    @property
    def thresholds(self) -> tuple[float, ...] | None: ...

    def record(self, name: str, update: int, epoch: float) -> dict[str, Any]:
        """The fields of a validation in `monitor.records`."""


class Validator(Protocol):
    """What measures the weights of a run while it trains: `evaluate.validator`."""

    def of_session(self, session: Session) -> Validated: ...


_logger = logging.getLogger(__name__)


class Events:
    """What is due after each update. Every worker has one; only the main one writes files and prints."""

    def __init__(
        self,
        session: Session,
        folder: Path,
        observers: Sequence[Observer],
        validation: Validator | None,
        peak_share: Callable[[float], float | None] | None = None,
        lock: RunLock | None = None,
    ) -> None:
        self.session, self.folder, self.observers = session, folder, observers
        self._lock = lock
        self._validation = validation
        self._peak_share = peak_share
        self.writer = BackgroundWriter(after=self._after_save)
        self._written: list[Path] = []
        """Checkpoints that are complete and that nobody was told of."""
        self._saved_at: int | None = None
        self._saved_when = time.monotonic()

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.wait()
        self._tell_written()

    def stop_is_asked(self) -> bool:
        """Whether a callback wants the run to end; only the main worker knows."""
        return any(one.stop for one in self.observers)

    def folder_is_gone(self) -> bool:
        """Whether somebody removed the run folder; only the main worker knows."""
        return self._lock is not None and not self._lock.stands()

    def catch_up(self) -> None:
        """What an earlier part of the run left undone after its last update.

        A worker may have died in the middle of it; a run that is told to leave at that very update skips the validation.
        """
        session = self.session
        if session.events_due:
            self.after_update(session.spec.schedule.rate(session.update - 1))
            session.events_due = False
        due = self._validates_at(session.update, session.update == session.spec.length.updates_total)
        if session.update > 0 and session.validated_at != session.update and due:
            with session.meter.paused():
                self.validate()
                self.save()

    def save_is_due(self) -> bool:
        """Whether `--checkpoint-every` has gone by since the last checkpoint."""
        every = self.session.spec.options.events.checkpoint_every
        return every is not None and time.monotonic() - self._saved_when >= seconds(every)

    def after_update(self, rate: float, *, save: bool = False) -> None:
        """The log point, histograms, validation and checkpoint that are due now, in this order."""
        session = self.session
        spec, update = session.spec, session.update
        last = update == spec.length.updates_total
        self._tell_written()
        if update % spec.events.updates_per_call == 0 or last:
            tell(self.observers, lambda one: one.tick(update))
        regular = spec.events.logs_at(update, spec.length.updates_total)
        if regular or session.reason is not None:
            # A row more for a run that is told to leave: the next regular one is that of an undisturbed run.
            self._log(rate, goes_on=not regular)
        if spec.options.run.weight_histograms and (last or update % spec.length.updates_per_epoch == 0):
            with session.meter.paused():
                self._show_weights()
        if self._validates_at(update, last):
            with session.meter.paused():
                self.validate()
        if save or self._saves_at(update, last):
            with session.meter.paused():
                self.save()

    def _log(self, rate: float, *, goes_on: bool) -> None:
        session, updater = self.session, self.session.updater
        record: dict[str, Any] = {"update": session.update, "epoch": session.epoch, "lr": rate}
        record |= session.meter.read(
            session.spec.topology.global_batch, not session.spec.options.events.disable_metrics, goes_on=goes_on
        )
        if session.world.lane == 0:
            record["weights"] = digest(session.lane.module.state_dict(), session.world)
        record["seconds"] = session.stopping.seconds
        if updater.loss_scale.dynamic or updater.loss_scale.value != 1.0:
            record["loss_scale"] = updater.loss_scale.value
        if updater.loss_scale.skipped:
            record["skipped_updates"] = updater.loss_scale.skipped
        if updater.gradient_norm is not None:
            record["gradient_norm"] = float(updater.gradient_norm)
        share = self._peak_share(record["images_per_second"]) if self._peak_share is not None else None
        if share is not None:
            record["peak_share"] = share
        tell(self.observers, lambda one: one.log(record))

    def _tell_written(self) -> None:
        while self._written:
            tell(self.observers, methodcaller("checkpoint", self._written.pop(0)))

    def _show_weights(self) -> None:
        """Stages hold only their own, so every worker takes part."""
        weights = self.session.model_state()
        if self.observers:
            found = histograms(weights)
            tell(self.observers, lambda one: one.weights(self.session.update, found))

    def _validates_at(self, update: int, last: bool) -> bool:
        options, session = self.session.spec.options.events, self.session
        if self._validation is None or session.reason is Reason.INTERRUPTED:
            return False
        epoch, rest = divmod(update, session.spec.length.updates_per_epoch)
        return last or session.reason is not None or (rest == 0 and epoch % options.epochs_per_validation == 0)

    def validate(self) -> None:
        """Validate the weights as they are now; the result may end the run. Without answers there is no result."""
        session = self.session
        assert self._validation is not None
        result = self._validation.of_session(session)
        if not result.is_finite:
            check_weights(session)
            if session.world.is_main:
                _logger.warning(
                    "the validation after update %d gave answers that are not finite though all weights are: it has no "
                    "accuracy, and the run goes on",
                    session.update,
                )
            return
        session.last_accuracy = result.top1
        session.validated_at, session.thresholds = session.update, result.thresholds
        record = result.record(str(session.update), session.update, session.epoch)
        session.last_score = score(record, session.spec.best_by)
        verdict = session.stopping.judge(result.top1, session.update, session.last_score)
        session.reason = session.reason or verdict
        tell(self.observers, lambda one: one.validation(record))

    def _saves_at(self, update: int, last: bool) -> bool:
        events = self.session.spec.events
        ending = last or self.session.reason in (Reason.TARGET, Reason.PATIENCE, Reason.CALLBACK)
        return (
            events.saves_at(update)
            or (ending and events.updates_per_checkpoint > 0)
            or (self.session.reason is not None and self.session.reason.to_be_continued)
        )

    def save(self) -> None:
        """Write a checkpoint in the background."""
        session = self.session
        if self._saved_at == session.update:
            return
        check_weights(session)
        state = session.state()
        if session.world.is_main:
            self.writer.save(self.folder / store.CHECKPOINTS / str(session.update), state)
        self._saved_at = session.update
        self._saved_when = time.monotonic()

    def _after_save(self, folder: Path, state: State) -> None:
        """In the writer's thread: remember the best, delete what need not be kept."""
        if state.progress["validated_at"] == state.update:
            by = self.session.spec.best_by
            choice.write_best(
                self.folder, state.update, state.progress["last_accuracy"], by, state.progress["last_score"]
            )
        self._written.append(folder)
        store.prune(self.folder, self.session.spec.options.events.checkpoints_to_keep)
