"""Training and validation from Python: the functions behind `conveyor.train` and `conveyor.validate`."""

import csv
import dataclasses
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from conveyor.data.catalogue import DatasetInfo
from conveyor.data.user_data import OwnData, adopt
from conveyor.options import Options
from conveyor.run import validate_run, worker
from conveyor.run.assemble import Own
from conveyor.run.finish import best_checkpoint
from conveyor.run.preflight import check_names
from conveyor.run.stored_options import options_for_validation, with_plain_weights
from conveyor.spec import OWN_MODEL, RunSpec, random_weights, resolve

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished (or interrupted) run: its folder and what can be read from it."""

    folder: Path
    reason: str = "done"
    updates: int = 0
    accuracy: float | None = None
    best_accuracy: float | None = None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.csv, numbers as numbers."""
        return _rows(self.folder / "metrics.csv")

    @property
    def validations(self) -> list[dict[str, Any]]:
        """The rows of validation.csv."""
        return _rows(self.folder / "validation.csv")

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint with the best validation, else the newest."""
        return best_checkpoint(self.folder)

    def __str__(self) -> str:
        shown = f", accuracy {self.accuracy:.2f} %" if self.accuracy is not None else ""
        return f"{self.reason} after {self.updates} updates{shown} in {self.folder}"


def train(
    options: Options,
    model: nn.Module | None = None,
    dataset: OwnData | None = None,
    named: Collection[str] = (),
    callbacks: Sequence[Any] = (),
) -> dict[str, Any]:
    """Train in this process; returns what the worker did. `dataset` is (training set, validation set), see `own.adopt`; `named`, see `check_names`."""
    spec, own = _with_own(options.replace(layout="1x1") if callbacks else options, model, dataset)
    check_names(spec, named, model)
    return dict(worker.run(spec, own=dataclasses.replace(own, callbacks=callbacks)))


def validate(
    options: Options, model: nn.Module | None = None, dataset: OwnData | None = None
) -> Sequence[dict[str, Any]]:
    """Validate in this process; one record per checkpoint."""
    options = with_plain_weights(options)
    path = options.run.checkpoint_path
    if path is not None and model is None:
        options = options_for_validation(Path(path)).updated(options.changed())
    spec, own = _with_own(options.replace(training=False), model, dataset)
    if model is None and (sentence := random_weights(spec.options)) is not None:
        _logger.warning("%s", sentence)
    return validate_run.run(spec, own=own)


def _with_own(options: Options, model: nn.Module | None, dataset: OwnData | None) -> tuple[RunSpec, Own]:
    info: DatasetInfo | None = None
    train_data = validation_data = None
    if dataset is not None:
        info, train_data, validation_data = adopt(dataset, options.model.num_classes)
    if model is not None or dataset is not None:
        # The user's own objects live in this process only.
        options = options.replace(layout="1x1")
    spec = resolve(options, info=info, model_name=OWN_MODEL if model is not None else None)
    return spec, Own(model, train_data, validation_data)


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: _value(text) for name, text in row.items() if text} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
