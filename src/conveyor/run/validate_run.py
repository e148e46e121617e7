"""`conveyor validate` as a worker runs it: one checkpoint, all checkpoints of a folder, plain weights, or random ones."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from conveyor.checkpoint import store
from conveyor.errors import UserError, explained_memory
from conveyor.evaluate import saved_checkpoints
from conveyor.evaluate.accuracy import check_answers
from conveyor.evaluate.answers import write_answers
from conveyor.evaluate.validator import Validation
from conveyor.files import user_path
from conveyor.numerics.gpu_arithmetic import gpu_arithmetic
from conveyor.numerics.threads import using_threads
from conveyor.run.assemble import UserObjects, make_prepare, make_validation
from conveyor.spec import RunSpec, random_weights
from conveyor.training import build_model
from conveyor.world.world import World, device_for

_logger = logging.getLogger(__name__)

Records = list[dict[str, Any]]


def run(spec: RunSpec, world: World | None = None, own: UserObjects | None = None) -> Records:
    """Validate what the options name; one record per checkpoint and repetition, the same on every worker."""
    world, own = world or World(device_for(spec.options.layout)), own or UserObjects()
    said = random_weights(spec.options)  # before any worker was started
    for note in spec.notes if world.is_main else ():
        if note != said:
            _logger.warning("note: %s", note)
    with explained_memory(), using_threads(spec.layout.threads), gpu_arithmetic(spec.options.precision):
        # The model first: weights that do not fit are reported before the images are searched.
        model = None if spec.options.run.checkpoint_path else build_model.build_model(spec, own=own.model)
        validation = make_validation(spec, world, own, make_prepare(spec, world))
        if validation is None:
            raise UserError(f"the data set {spec.data.name} has no images to validate on")
        if model is None:
            records = list(_checkpoints(spec, validation))
        else:
            model = build_model.place_model(model, spec, world.device, train=False)
            weights = spec.options.model.weights
            name = Path(weights).name if weights else "random" if own.model is None else "own model"
            records = [_measured(validation, model, name) for _ in range(spec.options.events.repeat)]
        path = spec.options.events.answers
        if path is not None and world.is_main and validation.all_answers is not None:
            # Of the last model that was measured.
            write_answers(user_path(path), validation.all_answers, validation.dataset, validation.thresholds)
        return records


def _measured(validation: Validation, model: nn.Module, name: str) -> dict[str, Any]:
    found = validation.measure(model)
    check_answers(found, model, name)
    return found.record(name, -1, 0.0)


def _checkpoints(spec: RunSpec, validation: Validation) -> Iterator[dict[str, Any]]:
    path, repeat = spec.options.run.checkpoint_path, spec.options.events.repeat
    assert path is not None
    found = store.existing(path)
    count = 0
    # Of the one that was asked for, damage is an error, not a warning.
    for record, _ in saved_checkpoints.records(found.checkpoints, validation, repeat, strict=found.single):
        yield record
        count += 1
    if count == 0:
        raise UserError(
            f"no usable checkpoint in {path}: all {len(found.checkpoints)} of them are damaged or give answers that are "
            "not finite"
        )
