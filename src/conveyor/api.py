"""The Python face of Conveyor: the same options as the command line, as keyword arguments.

run = conveyor.train(model="resnet20", data="cifar10", epochs=3)
conveyor.validate(checkpoint_path=run.folder)
model = conveyor.load(run.folder)
"""

from pathlib import Path
from typing import Any

from torch import nn

from conveyor.checkpoint import choice
from conveyor.errors import UserError
from conveyor.infer.classifier import Classifier
from conveyor.infer.load import load as load_for_inference
from conveyor.models import user_module
from conveyor.options import Options
from conveyor.options.file import configuration
from conveyor.options.layers import layered
from conveyor.run import in_process
from conveyor.run.in_process import Run

__all__ = ["Run", "load", "train", "validate"]


def train(*, model: str | nn.Module | None = None, data: Any = None, config: str | None = None, **options: Any) -> Run:
    """Train a network and return the run (folder, metrics, best checkpoint).

    `model` and `data` are names, or objects of your own: an `nn.Module`, and (training, validation) data given as arrays,
    map-style data sets or `conveyor.data.batch.Dataset`s. `config` is a named configuration or a YAML file; every other
    keyword is an option of `conveyor train`. Runs with several workers start them as processes of their own, so a script
    needs no `if __name__ == "__main__"`.
    """
    chosen, own_model, own_data = _options(model, data, config, options)
    if own_model is not None or own_data is not None:
        return in_process.train(chosen, own_model, own_data, named=options)
    from conveyor.launch.run_job import start
    from conveyor.run.preflight import check_names

    return Run.from_result(start(chosen, check=lambda spec: check_names(spec, options)))


def validate(
    *,
    model: str | nn.Module | None = None,
    data: Any = None,
    config: str | None = None,
    checkpoint: str | int | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Validate a checkpoint, a run or a module: one record with `accuracy` and more for each.

    Of a run every checkpoint is validated, or with `checkpoint` the one that is `best`, `last` or of that update.
    """
    if (path := options.get("checkpoint_path")) is not None:
        options["checkpoint_path"] = str(path if checkpoint is None else choice.find(Path(path), str(checkpoint)))
    elif checkpoint is not None:
        raise UserError("checkpoint chooses one of a run: name the run with checkpoint_path")
    chosen, own_model, own_data = _options(model, data, config, options)
    return list(in_process.validate(chosen, own_model, own_data))


def load(path: str | Path, checkpoint: str | int | None = None) -> Classifier:
    """The trained network of a run, a checkpoint or an export: a module in evaluation mode that knows its labels.

    Of a run it is the checkpoint `best`, `last` (default) or of an update; `.checkpoint` says which it is.
    """
    return Classifier(load_for_inference(path, checkpoint))


def _options(
    model: str | nn.Module | None, data: Any, config: str | None, given: dict[str, Any]
) -> tuple[Options, nn.Module | None, Any]:
    """The options, and the caller's own model and data if there are any."""
    user_module.admit(model if isinstance(model, str) else None)
    own_model = None if model is None or isinstance(model, str) else model
    own_data = None if data is None or isinstance(data, str) else data
    if own_model is not None and not isinstance(own_model, nn.Module):
        raise UserError(f"model should be a name or an nn.Module, not {type(model).__name__}")
    named = {"model": model if own_model is None else None, "data": data if own_data is None else None}
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    asked = {**{name: value for name, value in named.items() if value is not None}, **plain}
    layers = [configuration(config)] if config is not None else []
    return layered([*layers, (asked, "")]), own_model, own_data
