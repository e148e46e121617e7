"""Training and validation from Python: the functions behind `conveyor.train` and `conveyor.validate`."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from conveyor.data.batch import Dataset
from conveyor.data.catalogue import DatasetInfo
from conveyor.data.user_data import OwnData, adopt
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.run import validate_run, worker
from conveyor.run.assemble import UserObjects
from conveyor.run.finish import Result
from conveyor.run.same_objects import agree
from conveyor.run.stored_options import options_for_validation, with_plain_weights
from conveyor.spec import OWN_MODEL, RunSpec, random_weights, resolve
from conveyor.world.world import World

_logger = logging.getLogger(__name__)


Resolving = Callable[..., RunSpec]
"""Takes options and the keyword arguments of `spec.resolve`."""


def prepared(
    options: Options,
    model: nn.Module | None = None,
    dataset: OwnData | None = None,
    callbacks: Sequence[Any] = (),
) -> tuple[Resolving, Callable[[RunSpec, World], Result]]:
    """How options become a spec, and what a worker does with it, when the caller brings objects of its own.

    `dataset` is (training set, validation set), see `user_data.adopt`. Every worker of a launcher is given its own copy
    of the objects by the caller's script.
    """
    name = OWN_MODEL if model is not None else None
    info, *data = _adopted(options, dataset)
    own = UserObjects(model, data[0], data[1], callbacks)

    def resolving(asked: Options, **where: Any) -> RunSpec:
        spec = resolve(asked, info=info, model_name=name, **where)
        if model is not None and spec.layout.depth > 1:
            raise UserError(
                f"layout {spec.layout} cuts a module of your own into stages: choose one of depth 1, such as "
                f"{spec.layout.workers}x1, or give the module a name (--model FILE.py:NAME)"
            )
        return spec

    def run(spec: RunSpec, world: World) -> Result:
        agree(own, world)
        return worker.run(spec, world, own)

    return resolving, run


def validate(
    options: Options, model: nn.Module | None = None, dataset: OwnData | None = None
) -> Sequence[dict[str, Any]]:
    """Validate in this process; one record per checkpoint."""
    options = with_plain_weights(options)
    path = options.run.checkpoint_path
    if path is not None and model is None:
        options = options_for_validation(Path(path)).updated(options.changed())
    options = options.replace(training=False)
    info, *data = _adopted(options, dataset)
    if model is not None or dataset is not None:
        # The user's own objects live in this process only.
        options = options.replace(layout="1x1")
    spec = resolve(options, info=info, model_name=OWN_MODEL if model is not None else None)
    if model is None and (sentence := random_weights(spec.options)) is not None:
        _logger.warning("%s", sentence)
    return validate_run.run(spec, own=UserObjects(model, data[0], data[1]))


def _adopted(options: Options, dataset: OwnData | None) -> tuple[DatasetInfo | None, Dataset | None, Dataset | None]:
    if dataset is None:
        return None, None, None
    return adopt(dataset, options.model.num_classes, multi_label=options.data.multi_label)
