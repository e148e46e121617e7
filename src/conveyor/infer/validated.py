"""`conveyor validate --infer-precision`: the accuracy of what would be served, in the precision it would be served in."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conveyor.checkpoint import store
from conveyor.checkpoint.folder import load_without_tensors
from conveyor.errors import UserError
from conveyor.infer.accuracy import data_options, in_order
from conveyor.infer.asked_precision import AskedPrecision
from conveyor.infer.load import from_options, load
from conveyor.infer.loaded import Loaded
from conveyor.infer.precision import fit
from conveyor.layout import usable_cores
from conveyor.options import Options, specs
from conveyor.options.validation import has_effect

BATCH = 32
READ = (
    "checkpoint_path",
    "weights",
    "data_dir",
    "max_validation_images",
    "threads",
    "validation_batch_size",
    "run_dir",
    "quiet",
    "json_logs",
)
"""Options of a validation that are read here; of plain weights those of model and data are, too."""


def unread(given: Iterable[str], options: Options) -> list[str]:
    """The flags of the options `given` that have no effect here, though a validation in training's precision reads them."""
    sections = () if options.run.checkpoint_path is not None else ("model", "data")
    return [
        specs()[one].flag
        for one in given
        if has_effect(one) and one not in READ and specs()[one].section not in sections
    ]


def records(options: Options, wanted: AskedPrecision, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """One record for each checkpoint that the options name (or for their weights), as other validations have them."""
    found = []
    for loaded, update, epoch in _models(options):
        if loaded.thresholds is not None:
            raise UserError(f"{loaded.name} is a multi-label model: validate it without --infer-precision")
        if loaded.module is None:
            raise UserError(f"{loaded.name} is an export, and exports are not validated: validate the run it came from")
        threads = options.layout.threads or usable_cores()
        batch = options.events.validation_batch_size or BATCH
        fitted = fit(loaded, wanted, batch=batch, threads=threads, say=say)
        for note in fitted.notes:
            say(note)
        engine = fitted.open(batch=batch, threads=threads)
        data = data_options(loaded, options.data.data_dir or wanted.data_dir)
        data = data.replace(max_validation_images=options.data.max_validation_images)
        seconds, answers, labels = 0.0, [], []
        for part in in_order(loaded, data, batch):
            begun = time.perf_counter()
            answers.append(engine(part.images))
            seconds += time.perf_counter() - begun
            labels.append(part.labels)
        engine.close()
        count = sum(len(part) for part in labels)
        found.append(
            {
                "name": f"{loaded.spec.get('checkpoint', loaded.name)} {fitted.precision}",
                "update": update, "epoch": epoch, **scores(np.concatenate(answers), np.concatenate(labels)),
                "images": count, "seconds": seconds, "images_per_second": count / seconds,
            }
        )  # fmt: skip
    return found


def _models(options: Options) -> Iterator[tuple[Loaded, int, float]]:
    """Each model with its update and epoch."""
    path = options.run.checkpoint_path
    if path is None:
        yield from_options(options, "weights" if options.model.weights else "random"), -1, 0.0
        return
    for checkpoint in store.existing(path).checkpoints:
        state = load_without_tensors(checkpoint)
        update = state.update if store.is_numbered(checkpoint) else -1
        yield load(Path(checkpoint)), update, float(state.progress.get("epoch", 0.0))


def scores(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> dict[str, float]:
    """Top-1 and top-5 in percent, and the mean cross entropy, of logits [N, K]."""
    values = logits.astype(np.float64)
    order = np.argsort(-values, axis=1)[:, :5]
    shifted = values - values.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]
    return {
        "accuracy": 100 * float((order[:, 0] == labels).mean()),
        "accuracy_top5": 100 * float((order == labels[:, None]).any(axis=1).mean()),
        "loss": float(losses.mean()),
    }
