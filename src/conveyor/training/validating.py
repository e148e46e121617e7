"""`conveyor validate` as a worker runs it: one checkpoint, all checkpoints of a folder, plain weights, or random ones."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conveyor.checkpoint import store
from conveyor.errors import UserError
from conveyor.numerics.threads import using_threads
from conveyor.training import build, checkpoints
from conveyor.training.assemble import Own, make_prepare, make_validation
from conveyor.training.spec import RunSpec
from conveyor.training.stored import is_weights_file
from conveyor.training.validation import Validation
from conveyor.training.world import World, device_for

_logger = logging.getLogger(__name__)

Records = list[dict[str, Any]]


def run(spec: RunSpec, world: World | None = None, own: Own | None = None) -> Records:
    """Validate what the options name; one record per checkpoint and repetition, the same on every worker."""
    world, own = world or World.single(device_for(spec.options.layout)), own or Own()
    with using_threads(spec.layout.threads):
        validation = make_validation(spec, world, own, make_prepare(spec, world))
        if validation is None:
            raise UserError(f"the data set {spec.data.name} has no images to validate on")
        return list(_records(spec, world, own, validation))


def _records(spec: RunSpec, world: World, own: Own, validation: Validation) -> Iterator[dict[str, Any]]:
    path, repeat = spec.options.run.checkpoint_path, spec.options.events.repeat
    if path is not None and not is_weights_file(Path(path)):
        found = store.locate(path)
        if found.checkpoints:
            if found.single:
                # The one that was asked for: damage is an error, not a warning.
                store.load_newest(path)
            count = 0
            for record, _ in checkpoints.records(found.checkpoints, validation, repeat):
                yield record
                count += 1
            if count == 0:
                raise UserError(f"no complete checkpoint in {path}: all {len(found.checkpoints)} of them are damaged")
            return
        _logger.warning("no checkpoint in %s: validating random weights", path)
    name = "random"
    if path is not None and is_weights_file(Path(path)):
        spec = spec.replace(options=spec.options.replace(weights=path))
    if spec.options.model.weights is not None:
        name = Path(spec.options.model.weights).name
    elif path is None and own.model is None:
        _logger.warning("no --checkpoint-path and no --weights: validating random weights")
    elif own.model is not None:
        name = "own model"
    model = build.place_model(build.build_model(spec, own=own.model), spec, world.device, train=False)
    for _ in range(repeat):
        yield validation.measure(model).record(name, -1, 0.0)
