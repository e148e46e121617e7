"""After the last update: averages, validation of all checkpoints, and the files that the report reads."""

import contextlib
import json
import signal
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor

from conveyor.checkpoint import choice
from conveyor.data.feed import TrainingFeed
from conveyor.data.transform.prepare import Prepare
from conveyor.errors import UserError
from conveyor.evaluate.calibration import write_calibration
from conveyor.evaluate.mistakes import Answers, write_confusion
from conveyor.evaluate.saved_checkpoints import validate_checkpoints
from conveyor.evaluate.validator import Validation
from conveyor.files import write_atomically
from conveyor.monitor.observers import append_log, tell
from conveyor.monitor.progress import say
from conveyor.remote.mirror import typed
from conveyor.run.averages import average_after_training
from conveyor.run.examples import write_answers, write_training_images
from conveyor.training.events import Events
from conveyor.training.session import Session
from conveyor.training.stopping import Reason


class Result(TypedDict):
    """How a run ended; plain values, so that a worker can send it to the process that started it."""

    folder: str
    updates: int
    reason: Reason
    accuracy: float | None
    best_accuracy: float | None
    best_update: int | None
    signal: int | None
    restarts: int
    updates_repeated: int


def finish(
    events: Events, validation: Validation | None, received: signal.Signals | None, feed: object, prepare: Prepare
) -> Result:
    """Leave the run folder complete; every worker calls it. `feed` and `prepare` are what it was trained on."""
    session, folder, observers = events.session, events.folder, events.observers
    stopping = session.stopping
    if session.reason is not Reason.INTERRUPTED:
        _average_and_validate(events, validation)
    validated = stopping.best_update >= 0
    result = Result(
        folder=str(folder),
        updates=session.update,
        reason=session.reason or Reason.DONE,
        accuracy=session.last_accuracy,
        best_accuracy=stopping.best_accuracy if validated else None,
        best_update=stopping.best_update if validated else None,
        signal=None if received is None else int(received),
        restarts=session.restarts,
        updates_repeated=session.updates_repeated,
    )
    answers, weights = _answers(session, validation)
    if session.world.is_main:
        _write_files(session, folder, validation)
        try:
            _write_examples(events, validation, answers, weights, feed, prepare)
        except Exception as problem:  # the run is complete without the report's images: no trouble here can fail it
            say(f"note: the report lacks images: {type(problem).__name__}: {problem}")
        record = _last_record(session, result)
        tell(observers, lambda one: one.end(record))
        if result["reason"].to_be_continued and not session.spec.options.run.json_logs:
            cause = received.name if received is not None and result["reason"] is Reason.INTERRUPTED else "--max-time"
            line = f"{cause}: stopped after update {session.update}, saved; go on with conveyor restore {typed(folder)}"
            append_log(folder, [line])  # first: a launcher that is gone takes standard output with it
            say(line, whole="'" in line)  # folded, a quoted path would be another one
    return result


def _average_and_validate(events: Events, validation: Validation | None) -> None:
    session, options = events.session, events.session.spec.options.events
    if session.world.is_main:
        average_after_training(events.folder, session.spec)
    session.world.barrier()
    if validation is not None and (options.validation_mode == "after" or options.average_last or options.average_decay):
        only_averages = options.validation_mode != "after"
        validate_checkpoints(session, events.folder, validation, events.observers, only_averages=only_averages)


def _answers(session: Session, validation: Validation | None) -> tuple[Answers, dict[str, Tensor] | None]:
    """Answers of the last validation, of all workers together; and its weights, if they are still those of the run."""
    if validation is None:
        return Answers(), None
    # Averages that were validated since then have mistakes of their own.
    mine = validation.answers if validation.during_training is None else validation.during_training[1]
    answers = Answers(one for listed in session.world.of_all(mine.listed()) for one in listed)
    shown = session.spec.options.run.report and not (session.reason or Reason.DONE).to_be_continued
    is_current = validation.during_training is not None and session.validated_at == session.update
    return answers, validation.weights(session) if shown and is_current else None


def _write_files(session: Session, folder: Path, validation: Validation | None) -> None:
    """What the report reads besides the observers' files."""
    write_atomically(folder / "timing.json", json.dumps(session.timing.seconds))
    if validation is None or validation.during_training is None:
        return
    found, classes, update = validation.during_training[0], session.spec.data.class_names, session.validated_at
    if found.confusion is not None:
        write_confusion(folder, found.confusion, classes, update)
    if found.multi_label is not None:
        found.multi_label.write(folder, classes, update)
    if found.calibration is not None:
        write_calibration(folder, found.calibration, update)


def _write_examples(
    events: Events, validation: Validation | None, answers: Answers, weights: dict[str, Tensor] | None, feed: object,
    prepare: Prepare,
) -> None:  # fmt: skip
    """The report's images."""
    session, folder = events.session, events.folder
    options, ended = session.spec.options, not (session.reason or Reason.DONE).to_be_continued
    if options.data.synthetic_data:
        return
    if validation is not None and (answers.wrong or answers.right):  # else those of an earlier validation stay
        write_answers(folder, answers, validation, weights)
    if isinstance(feed, TrainingFeed) and options.run.report and ended and session.update:
        write_training_images(folder, feed.dataset, session.spec, prepare, session.update - 1)


def _last_record(session: Session, result: Result) -> dict[str, Any]:
    """The last record for the observers."""
    record: dict[str, Any] = {
        "updates": session.update,
        "epochs": session.epoch,
        "seconds": session.stopping.seconds,
        "images_per_second": session.meter.mean_rate(),
        "reason": result["reason"],
        "restarts": session.restarts,
        "updates_repeated": session.updates_repeated,
    }
    if result["accuracy"] is not None:
        record["accuracy"] = result["accuracy"]
    if result["best_update"] is not None:
        record |= {"best_accuracy": result["best_accuracy"], "best_update": result["best_update"]}
    return record


def best_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the best validation, else the newest one."""
    for which in (choice.BEST, choice.LAST):
        with contextlib.suppress(UserError):
            return choice.find(folder, which)
    return None
