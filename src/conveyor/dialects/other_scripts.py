"""The scripts besides training: going on, validating, averaging, exporting and serving."""

import dataclasses
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from conveyor.dialects import stored_runs
from conveyor.dialects.checkpoint_names import checkpoint_path
from conveyor.dialects.pytorch import translate as pytorch
from conveyor.dialects.reader import Values
from conveyor.dialects.tensorflow1 import translate as tensorflow1
from conveyor.dialects.tensorflow2 import translate as tensorflow2
from conveyor.dialects.translation import Draft, Launcher, Translation
from conveyor.errors import UserError
from conveyor.infer.target import check_target
from conveyor.run.stored_options import is_weights_file

Rules = Callable[[str, Values, Launcher, Mapping[str, str]], Translation]


def _path(values: Values, *keys: str, what: str = "the run or the checkpoint that is meant") -> str:
    for key in keys:
        if values[key]:
            return checkpoint_path(str(values[key]))
    raise UserError(f"{values.spelling(keys[0])} is required: {what}")


def _average(
    values: Values, style: str, path: str, output: str, mode: str, decay: float, last: int, more: list[str]
) -> Translation:
    """An average of a run's checkpoints; `last` 0 is all of them."""
    rate = ["--decay", f"{decay:g}"] if mode == "exponential" else []  # the older programs ignore it for a mean
    words = ["--checkpoint-path", path, "--mode", mode, *rate, "--output", output]
    words += ["--last", str(last)] if last > 0 else []
    return Draft(values, style).finish("average", (*words, *more))


def pytorch_restore(script: str, values: Values, launcher: Launcher, environment: Mapping[str, str]) -> Translation:
    """restore.py: all options come with the checkpoint."""
    path = _path(values, "checkpoint_path", "checkpoint_input_path")
    stored = stored_runs.stored_options(path)
    seed = stored_runs.batch_in_words(stored, "gradient_accumulation")
    made = lambda given: pytorch.translate("train", given, launcher, environment)  # noqa: E731
    return stored_runs.restored(values, made, path, pytorch.STYLE, stored, seed)


def pytorch_validate(script: str, values: Values, launcher: Launcher, environment: Mapping[str, str]) -> Translation:
    """validate.py: all options come with the checkpoint; plain weights take those of the command line."""
    path = _path(values, "checkpoint_path", "checkpoint_input_path")
    made = lambda given: pytorch.translate(script, given, launcher, environment)  # noqa: E731
    if is_weights_file(Path(path)):
        translation = made(values)
        return dataclasses.replace(translation, options=translation.options.replace(checkpoint_path=path))
    return stored_runs.validated(values, made, path)


def tensorflow1_train(script: str, values: Values, launcher: Launcher, environment: Mapping[str, str]) -> Translation:
    """train.py, and restore.py: with --restore-path a stored run goes on."""
    if script == "train" and not values["restore_path"]:
        return tensorflow1.translate(script, values, launcher, environment)
    path = _path(values, "restore_path")
    stored = stored_runs.stored_options(path)
    seed = stored_runs.batch_in_words(stored, "gradient_accumulation_count")
    seed |= tensorflow1.in_words(stored)
    if values.has("epochs"):
        del seed["iterations"]  # where both are given, iterations take precedence
    if script == "train":
        values.notes.append(f"--restore-path: training goes on from {path}, with the model and the batch of that run")
    made = lambda given: tensorflow1.translate("train", given, launcher, environment)  # noqa: E731
    return stored_runs.restored(values, made, path, tensorflow1.STYLE, stored, seed)


def tensorflow1_average(script: str, values: Values, launcher: Launcher, environment: Mapping[str, str]) -> Translation:
    """weight_avg.py: mean or exponential average of a run's checkpoints."""
    path, output = _path(values, "restore_path"), _path(values, "filename", what="the file of the average")
    if values["mode"] is None:
        raise UserError("--mode is required: mean or exponential")
    if values["discard_last"] not in (0, 1):
        raise UserError(f"--discard-last {values['discard_last']}: only the newest checkpoint can be left out (1)")
    more = ["--discard-last"] if values["discard_last"] else []
    return _average(values, tensorflow1.STYLE, path, output, values["mode"], values["decay"], values["N"] or 0, more)


def pytorch_average(script: str, values: Values, launcher: Launcher, environment: Mapping[str, str]) -> Translation:
    """weight_avg.py of the later program."""
    path = _path(values, "checkpoint_input_path")
    output = _path(values, "checkpoint_output_path", what="the file of the average")
    mode = values["weight_avg_strategy"] if values["weight_avg_strategy"] != "none" else "mean"
    return _average(
        values, pytorch.STYLE, path, output, mode, values["weight_avg_exp_decay"], values["weight_avg_N"], []
    )


def tensorflow2_export(script: str, values: Values, launcher: Launcher, environment: Mapping[str, str]) -> Translation:
    """export_for_serving.py: the model of a configuration, with weights if a checkpoint is given."""
    folder = str(check_target(values["export_dir"], "--export-dir"))
    checkpoint = checkpoint_path(values["checkpoint_input_path"] or "") or None
    if checkpoint and not Path(checkpoint).exists():
        raise UserError(f"--checkpoint-input-path {checkpoint} does not exist")
    base = tensorflow2.translate(script, values, launcher, environment)
    notes = list(base.notes)
    if not checkpoint:
        notes.append("no --checkpoint-input-path: the exported model has random weights")
    elif idle := _beside_checkpoint(values):
        notes.append(f"the model is that of {checkpoint}, so without effect: {', '.join(idle)}")
    form = _serving_form(notes)
    if values["pipeline_serving_model"] and not values["pipeline_splits"]:
        notes.append("--pipeline-serving-model has no effect without --pipeline-splits")
    words = [checkpoint or str(values["model_name"]), "--out", folder, "--format", form]
    words += ["--batch", str(base.options.batch.micro_batch_size)]
    settings = {"folder": folder, "checkpoint": checkpoint, "form": form}
    return dataclasses.replace(base, command="export", words=tuple(words), notes=tuple(notes), settings=settings)


def _beside_checkpoint(values: Values) -> list[str]:
    """Given options that only describe a model, which a checkpoint describes itself."""
    used = ("export_dir", "checkpoint_input_path", "micro_batch_size", "config", "config_path")
    return [values.spelling(key) for key in values.given if key not in used and not values.rows[key].nothing]


def _serving_form(notes: list[str]) -> str:
    """The export format: SavedModel as in the originals, or without TensorFlow another one, named in a note."""
    if find_spec("tensorflow") is not None:
        return "saved-model"
    notes.append(
        "TensorFlow is not installed, so the model is written as ONNX; after `pip install tensorflow-cpu` it is a SavedModel"
    )
    return "onnx"


def tensorflow2_request(script: str, values: Values, launcher: Launcher, environment: Mapping[str, str]) -> Translation:
    """send_request.py: export, serve, and send requests from several clients."""
    if not 0 < values["port"] < 65536:
        raise UserError(f"--port {values['port']}: give a number from 1 to 65535")
    base, notes = tensorflow2.translate(script, values, launcher, environment), list[str]()
    name = values.config_name or str(values["model_name"])
    settings = {
        "name": name,
        "host": values["host"],
        "port": values["port"],
        "batch_size": values["request_batch_size"],
        "clients": values["num_threads"],
        "num_images": values["num_images"],
        "use_async": bool(values["use_async"]),
        "verbose": bool(values["verbose"]),
        "checkpoint": values["checkpoint_input_path"],
        "form": _serving_form(notes),
    }
    words = [name, "--protocol", "grpc-tensorflow", "--batch-size", str(settings["batch_size"])]
    words += ["--clients", str(settings["clients"]), "--num-images", str(settings["num_images"])]
    words += ["--max-batch", str(base.options.batch.micro_batch_size), "--delay-us", "500", "--timeout", "60"]
    words += ["--use-async"] * settings["use_async"] + ["--verbose"] * settings["verbose"]
    note = f"the model is exported to {name}/001 and served on port {values['port']} (gRPC) while the requests are sent"
    return dataclasses.replace(
        base, command="request", words=tuple(words), notes=(*base.notes, *notes, note), settings=settings, config=None
    )


RULES: dict[tuple[str, str], Rules] = {
    ("pytorch", "restore"): pytorch_restore,
    ("pytorch", "validate"): pytorch_validate,
    ("pytorch", "weight_avg"): pytorch_average,
    ("tensorflow1", "train"): tensorflow1_train,
    ("tensorflow1", "restore"): tensorflow1_train,
    ("tensorflow1", "weight_avg"): tensorflow1_average,
    ("tensorflow2", "export_for_serving"): tensorflow2_export,
    ("tensorflow2", "send_request"): tensorflow2_request,
}
