"""The Python interface of Conveyor: the same options as the command line, as keyword arguments.

run = conveyor.train(model="resnet20", data="cifar10", epochs=3)
run.metrics, run.validation, run.best, run.report()
conveyor.validate(checkpoint_path=run.folder)
model = conveyor.load(run)
model.predict("photo.jpg").label
"""

import contextlib
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from conveyor.checkpoint import choice
from conveyor.errors import UserError, needed
from conveyor.infer.classifier import Classifier
from conveyor.infer.load import load as load_for_inference
from conveyor.launch.rank import is_main
from conveyor.models import user_module
from conveyor.monitor.csvfile import read_rows
from conveyor.numerics.threads import check_fork
from conveyor.options import Options
from conveyor.options.file import configuration
from conveyor.options.layers import layered
from conveyor.options.typed import TrainOptions
from conveyor.options.units import many
from conveyor.remote import front
from conveyor.report import live
from conveyor.run import folder as rundir
from conveyor.run import in_process
from conveyor.run.finish import best_checkpoint
from conveyor.spec import resolve

__all__ = ["Classifier", "Run", "load", "train", "validate"]


@dataclass(frozen=True, slots=True)
class Run:
    """A finished (or interrupted) run: its folder, and what can be read and made from it."""

    folder: Path
    reason: str = "done"
    updates: int = 0
    accuracy: float | None = None
    best_accuracy: float | None = None
    own_model: nn.Module | None = field(default=None, repr=False, compare=False)
    """The caller's own module, which `model` needs."""

    @classmethod
    def of(cls, result: Mapping[str, Any], own_model: nn.Module | None = None) -> "Run":
        """A run from what its main worker returned."""
        known = (result.get("reason", "stopped"), result.get("updates", 0), result.get("accuracy"))
        return cls(Path(result["folder"]).absolute(), *known, result.get("best_accuracy"), own_model)

    @classmethod
    def open(cls, folder: str | Path, own_model: nn.Module | None = None) -> "Run":
        """A run that was made before."""
        if not rundir.holds_run(Path(folder)):
            raise UserError(f"there is no run in {folder}: give the folder of one")
        return cls.of({**rundir.read_result(Path(folder)), "folder": str(folder)}, own_model)

    @property
    def options(self) -> Options:
        """The options that the run used."""
        return rundir.read_options(self.folder)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.csv, numbers as numbers."""
        return _rows(self.folder / "metrics.csv")

    @property
    def validation(self) -> list[dict[str, Any]]:
        """The rows of validation.csv."""
        return _rows(self.folder / "validation.csv")

    @property
    def best(self) -> Path | None:
        """The checkpoint with the best validation, else the newest."""
        return best_checkpoint(self.folder)

    validations, best_checkpoint = validation, best

    def __str__(self) -> str:
        shown = f", accuracy {self.accuracy:.2f} %" if self.accuracy is not None else ""
        return f"{self.reason} after {many(self.updates, 'update')}{shown} in {self.folder}"

    @property
    def model(self) -> Classifier:
        """The trained network of the best checkpoint, ready to predict."""
        found = self.best
        if found is None:
            raise UserError(f"{self.folder} has no checkpoint to load")
        return load(found, model=self.own_model)

    def report(self) -> Path:
        """Write report.html again; returns its path."""
        from conveyor.report.page import write_report

        return write_report([self.folder])

    def plot(self) -> Any:
        """Loss and accuracy over the epochs as a matplotlib figure."""
        figure = needed("matplotlib.figure", "plot", "plot").Figure(figsize=(9, 3.2), layout="constrained")
        figure._repr_png_ = lambda: _png(figure)  # what a notebook shows; without pyplot it knows no figures
        for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
            for rows, what in ((self.metrics, "training"), (self.validation, "validation")):
                points = [(row["epoch"], row[name]) for row in rows if name in row and "epoch" in row]
                axes.plot(
                    *zip(*points, strict=True), marker="." if len(points) < 30 else "", label=what
                ) if points else None
            axes.set(xlabel="epoch", ylabel=name if name == "loss" else "accuracy, %")
            axes.grid(alpha=0.3)
            axes.legend()
        return figure

    def _repr_html_(self) -> str:
        """What a notebook shows: one line and the curves of the report."""
        from conveyor.report.inputs import read_run
        from conveyor.report.sections import notebook

        return notebook(read_run(self.folder), str(self))


def train(
    *,
    model: str | nn.Module | None = None,
    data: Any = None,
    config: str | None = None,
    callbacks: Sequence[Any] = (),
    **options: Unpack[TrainOptions],
) -> Run:
    """Train a network and return the run (folder, metrics, best checkpoint).

    `model` and `data` are names, or objects of your own: an `nn.Module`, and (training, validation) data given as
    arrays, map-style data sets or `conveyor.data.batch.Dataset`s. `config` is a named configuration or a YAML file;
    every other keyword is an option of `conveyor train`. `callbacks` are objects with some of the methods of
    `conveyor.monitor.callbacks.Callback`. Runs with several workers start them as processes of their own, so a script
    needs no `if __name__ == "__main__"`; with callbacks, or a model or data of your own, the run stays in this process.
    In a notebook a bar and the curves are shown under the cell while the run goes on.

    In a script that a launcher started several times (torchrun, srun, mpirun, submitit, `conveyor launch`), or beside an
    initialised process group (Ray Train), all these processes are the workers of one run, objects of your own included,
    and each gets the `Run`. Callbacks are called on worker 0.
    """
    from conveyor.launch.run_job import TRAIN, start
    from conveyor.run.preflight import check_names

    with front.local("train", options, writes=is_main()) as given, contextlib.ExitStack() as shown, _plain_torch():
        chosen, own_model, own_data = _options(model, data, config, given)
        own = own_model is not None or own_data is not None
        if chosen.data.folds is not None and chosen.data.fold is None:
            raise UserError(
                f"folds={chosen.data.folds} needs a fold from 0 to {chosen.data.folds - 1}: one run trains one"
            )
        if live.in_notebook() and not chosen.run.quiet:
            if chosen.run.run_dir is None:
                name = time.strftime("runs/own-%Y%m%d-%H%M%S") if own else str(rundir.choose(resolve(chosen)))
                chosen = chosen.replace(run_dir=name)
            shown.enter_context(live.shown(Path(str(chosen.run.run_dir))))
        how: dict[str, Any] = {"run": TRAIN}
        if not isinstance(callbacks, Sequence):
            raise UserError(f"callbacks should be a list of objects, not {type(callbacks).__name__}")
        if own or callbacks:
            how["resolving"], how["run"] = in_process.prepared(chosen, own_model, own_data, callbacks)
        result = start(chosen, check=lambda spec: check_names(spec, options, own_model), everywhere=True, **how)
        return Run.of(result, own_model)


def validate(
    *,
    model: str | nn.Module | None = None,
    data: Any = None,
    config: str | None = None,
    checkpoint: str | int | None = None,
    **options: Unpack[TrainOptions],
) -> list[dict[str, Any]]:
    """Validate a checkpoint, a run or a module: one record with `accuracy` and more for each.

    Of a run every checkpoint is validated, or with `checkpoint` the one that is `best`, `last` or of that update.
    """
    with front.local("validate", options) as given:
        if (path := given.get("checkpoint_path")) is not None:
            given["checkpoint_path"] = str(path if checkpoint is None else choice.find(Path(path), str(checkpoint)))
        elif checkpoint is not None:
            raise UserError("checkpoint chooses one of a run: name the run with checkpoint_path")
        chosen, own_model, own_data = _options(model, data, config, given)
        return list(in_process.validate(chosen, own_model, own_data))


def load(
    path: "str | Path | Run", checkpoint: str | int | None = None, *, model: nn.Module | None = None
) -> Classifier:
    """The trained network of a run, a checkpoint or an export: a module in evaluation mode that knows its labels.

    Of a run it is the checkpoint `best`, `last` (default) or of an update; `.checkpoint` says which it is. `model` is
    the module that the run was trained with, when that was one of your own: the weights are loaded into it.
    """
    if isinstance(path, Run):
        model = path.own_model if model is None else model
        path = path.folder
    if not isinstance(path, str | Path):
        raise UserError(f"path should be a folder, a file or a Run, not {type(path).__name__}")
    check_fork()
    return Classifier(load_for_inference(front.fetched(path), checkpoint, model))


def _options(
    model: str | nn.Module | None, data: Any, config: str | None, given: dict[str, Any]
) -> tuple[Options, nn.Module | None, Any]:
    """The options, and the caller's own model and data if there are any."""
    if isinstance(given.get("callback"), str):
        given["callback"] = [given["callback"]]
    callbacks = given.get("callback") or ()
    if not isinstance(callbacks, list | tuple) or not all(isinstance(one, str) for one in callbacks):
        raise UserError("callback names code, as FILE.py:NAME; objects are given as callbacks=[...]")
    own_model = None if model is None or isinstance(model, str) else model
    own_data = None if data is None or isinstance(data, str) else data
    if own_model is not None and not isinstance(own_model, nn.Module):
        raise UserError(f"model should be a name or an nn.Module, not {type(model).__name__}")
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    asked = {name: value for name, value in (("model", model), ("data", data)) if isinstance(value, str)} | plain
    user_module.admit_options(asked)
    layers = [configuration(config)] if config is not None else []
    return layered([*layers, (asked, "")]), own_model, own_data


def _png(figure: Any) -> bytes:
    figure.savefig(buffer := io.BytesIO(), format="png")
    return buffer.getvalue()


@contextlib.contextmanager
def _plain_torch() -> Iterator[None]:
    """Apart from what the caller is in the middle of: a run has the same bits wherever it is called, and draws none of theirs."""
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.random.fork_rng(devices=[]),
    ):
        yield


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file without their empty cells, numbers as numbers."""
    rows = read_rows(path)
    return [{name: _value(text) for name, text in row.items() if text} for row in rows]


def _value(text: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
