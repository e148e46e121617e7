"""Validation of saved checkpoints: each in turn, in ascending order, averaged ones last."""

import logging
from collections.abc import Iterator, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

from conveyor.checkpoint import choice, store
from conveyor.checkpoint.state import State
from conveyor.errors import UserError
from conveyor.evaluate.accuracy import check_answers
from conveyor.evaluate.validator import Validation
from conveyor.monitor.observers import Observer, tell
from conveyor.monitor.records import score
from conveyor.training.session import Session

_logger = logging.getLogger(__name__)


def records(
    paths: Sequence[Path], validation: Validation, repeat: int = 1, *, strict: bool = False
) -> Iterator[tuple[dict[str, Any], State]]:
    """Validate the checkpoints in their order, each `repeat` times; every worker calls it.

    One whose answers are not finite is reported and skipped; with `strict` it is an error, like a damaged one.
    """
    for path, state in store.readable(paths, strict=strict):
        model = validation.loaded(state)
        update = state.update if store.is_numbered(path) else -1
        for _ in range(repeat):
            found = validation.measure(model)
            try:
                check_answers(found, model, f"the checkpoint {path.name}")
            except UserError as problem:
                if strict:
                    raise
                _logger.warning("%s", problem)
                break
            yield found.record(path.name, update, float(state.progress.get("epoch", 0.0))), state


def validate_checkpoints(
    session: Session, folder: Path, validation: Validation, observers: Sequence[Observer], *, only_averages: bool
) -> None:
    """After training: every checkpoint of the run, or only the averaged ones."""
    paths = [path for path in store.listing(folder) if not (only_averages and store.is_numbered(path))]
    for record, state in records(paths, validation):
        if record["update"] >= 0:
            session.last_accuracy = record["accuracy"]
            by = session.spec.best_by
            session.stopping.judge(record["accuracy"], state.update, score(record, by))
            if session.world.is_main:
                choice.write_best(folder, state.update, record["accuracy"], by, score(record, by))
        tell(observers, methodcaller("validation", record))
