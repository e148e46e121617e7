"""Open a run, a checkpoint or an export for inference; nothing in any of them is ever executed."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conveyor.data.catalogue import DatasetInfo
from conveyor.data.subject import Subject, completed_subject, info_without_files, subject
from conveyor.errors import UserError, nothing_at
from conveyor.infer import PRECISIONS, AnswerPrecision, metadata
from conveyor.infer.loaded import Loaded
from conveyor.infer.preprocessing import Preprocessing
from conveyor.measure import processor
from conveyor.options import Options, specs
from conveyor.options.coerce import to_plain

if TYPE_CHECKING:
    from torch import Tensor, nn

_logger = logging.getLogger(__name__)
USUAL_THRESHOLD = 0.5
"""Of each class of a multi-label model that was never validated."""


def load(path: str | Path, checkpoint: str | int | None = None, own: "nn.Module | None" = None) -> Loaded:
    """The model at `path`: an export, a folder of numbered exports (the newest), a run or a checkpoint.

    `checkpoint` is `best`, `last` or an update of a run; none: `checkpoint.choice.DEFAULT`. `own` is the module that a run
    was trained with, when that was one of the caller's own: it takes the weights.
    """
    path, which = Path(path), None if checkpoint is None else str(checkpoint)
    if not path.exists():
        raise nothing_at(path, "a run, a checkpoint or an export")
    if path.name == metadata.METADATA:
        path = path.parent
    export = metadata.newest(path, which)
    if export is not None:
        return _load_export(export, name=None if export == path else path.resolve().name)
    from conveyor.checkpoint import choice, store  # imports torch, which an ONNX or OpenVINO file does not need

    found, state = store.load_chosen(path, which)
    options = Options.from_mapping(_known_options(state.options), where=str(found))
    tensors = {**state.model, **state.averages}
    run = store.locate(found).run
    spec = {
        "name": (run or found).resolve().name,
        "version": str(max(1, state.update)),
        "update": state.update,
        "checkpoint": found.name,
        "chosen": choice.text(found),
    }
    names = state.progress.get("class_names")
    known = [str(name) for name in names] if isinstance(names, list) else ()
    if options.data.multi_label:
        thresholds = state.progress.get("thresholds")
        if thresholds is None:
            _logger.warning(
                "%s was saved before a validation chose thresholds: every class has %g", found, USUAL_THRESHOLD
            )
        spec["thresholds"] = thresholds
    loaded = from_weights(options, tensors, spec, known, own)
    return dataclasses.replace(loaded, data_dir=options.data.data_dir)


def from_options(options: Options, name: str) -> Loaded:
    """A model with fresh weights from the seed (or `--weights`), for measuring and trying out."""
    import torch

    from conveyor import models

    info = info_without_files(options)
    options, about, told = completed_subject(options, info)
    for line in told:
        _logger.info("%s", line)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.run.seed)
        module = models.build_from(options.model, **about.arguments())
    if options.model.weights is not None:
        from conveyor.models.weights import load_weights

        load_weights(module, Path(options.model.weights), replace_head=options.model.replace_head)
    return _loaded(options, info, about, module, {"name": name, "version": "1"})


def from_weights(
    options: Options,
    tensors: "Mapping[str, Tensor]",
    spec: Mapping[str, Any],
    class_names: Sequence[str] = (),
    own: "nn.Module | None" = None,
) -> Loaded:
    """A model from its options and its weights; `class_names` as they were in training, else those of the data set."""
    from conveyor import models
    from conveyor.numerics import finite

    bad = finite.bad_weight(tensors.items())
    if bad is not None:
        raise UserError(f"the weights of {spec['name']} are not finite ({bad}): use an earlier checkpoint")
    info = info_without_files(options)
    about = subject(options, info)
    module = own if own is not None else models.build_from(options.model, **about.arguments())
    try:
        module.load_state_dict(
            {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        if options.model.model is None and own is None:
            cure = "it was trained with a module of the caller's own: conveyor.load(path, model=net)"
            raise UserError(f"the weights of {spec['name']} need their own module ({cure})") from None
        name = options.model.model if own is None else type(own).__name__
        raise UserError(f"the weights of {spec['name']} do not fit the model {name}: {reason}") from None
    return _loaded(options, info, about, module, spec, class_names)


def _loaded(
    options: Options,
    info: DatasetInfo,
    about: Subject,
    module: "nn.Module",
    spec: Mapping[str, Any],
    class_names: Sequence[str] = (),
) -> Loaded:
    known = (tuple(class_names), info.class_names)
    names = next((names for names in known if len(names) == about.num_classes), ())
    plain = {name: to_plain(value) for name, value in options.changed().items() if name not in ("run_dir", "data_dir")}
    thresholds = spec.get("thresholds") or [USUAL_THRESHOLD] * about.num_classes
    described = {
        **spec,
        **({"thresholds": thresholds} if options.data.multi_label else {}),
        "num_classes": about.num_classes,
        "model": options.model.model,
        "format": "torch",
        "batch": None,
        "options": plain,
    }
    fields = (field.name for field in dataclasses.fields(Preprocessing))
    preprocessing = Preprocessing(**{name: getattr(about, name) for name in fields})
    return Loaded(module.eval(), names, preprocessing, described)


def _load_export(path: Path, name: str | None = None) -> Loaded:
    document = metadata.read(path)
    form = document["format"]
    file = path / metadata.MODEL_FILES[form]
    version = str(int(path.name)) if path.name.isdecimal() else str(document.get("version", "1"))
    spec = {key: value for key, value in document.items() if key not in ("files", "labels", "preprocessing", "chosen")}
    spec |= {"name": name or document.get("name") or path.resolve().name, "version": version}
    _check_precision(document, path)
    preprocessing = Preprocessing.from_json(document["preprocessing"])
    labels = tuple(str(label) for label in document.get("labels", ()))
    if form != "torch":
        return Loaded(None, labels, preprocessing, spec, artifact=file)
    from conveyor.models.weights import read_state

    options = Options.from_mapping(_known_options(document.get("options", {})), where=str(path))
    loaded = from_weights(options, read_state(file), spec)
    return Loaded(loaded.module, labels, preprocessing, {**spec, "batch": None})


def _check_precision(document: Mapping[str, Any], path: Path) -> None:
    """Refuse what this program does not know, and full 8-bit weights where they would saturate."""
    if document.get("precision", AnswerPrecision.FLOAT32) not in PRECISIONS:
        raise UserError(f"{path} answers in {str(document['precision'])[:20]!r}, which this version does not know")
    measured = document.get("measured")
    if isinstance(measured, dict) and measured.get("weight_bits") == 8 and processor.weight_bits() < 8:
        raise UserError(
            f"{path} has full 8-bit weights, whose sums saturate on this processor (it has no VNNI): "
            "export the run again here, or with --weight-bits 7"
        )


def _known_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options that this version knows; where a model came from does not matter once it is trained."""
    return {
        name: value
        for name, value in given.items()
        if name in specs() and name not in ("run_dir", "checkpoint_path", "weights", "pretrained", "weights_dir")
    }
