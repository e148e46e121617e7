"""Open a run, a checkpoint or an export for inference; nothing in any of them is ever executed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conveyor.data import catalogue
from conveyor.data.catalogue import DatasetInfo
from conveyor.errors import UserError
from conveyor.infer import metadata
from conveyor.infer.loaded import Loaded
from conveyor.infer.preprocessing import Preprocessing
from conveyor.options import Options, specs
from conveyor.options.coerce import to_plain

if TYPE_CHECKING:
    from torch import Tensor, nn


def load(path: str | Path) -> Loaded:
    """The model at `path`: an export, a folder of numbered exports (the newest), a run (its newest checkpoint) or a checkpoint."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"there is nothing at {path}: give a run, a checkpoint or an export")
    if path.name == metadata.METADATA:
        path = path.parent
    if metadata.is_export(path):
        return _load_export(path)
    numbered = versions(path)
    if numbered:
        return _load_export(path / numbered[-1], name=path.resolve().name)
    from conveyor.checkpoint import store  # brings torch, which an ONNX or OpenVINO file does not need

    found, state = store.load_newest(path)
    options = Options.from_mapping(_known_options(state.options), where=str(found))
    tensors = {**state.model, **state.averages}
    run = store.locate(found).run
    spec = {
        "name": (run or found).resolve().name,
        "version": str(max(1, state.update)),
        "update": state.update,
        "checkpoint": found.name,
    }
    return from_weights(options, tensors, spec, state.progress.get("class_names", ()))


def versions(path: Path) -> list[str]:
    """The numbered exports in a folder, as other model servers keep them (`1`, `002`, ...), by ascending number."""
    if not path.is_dir():
        return []
    found = [entry.name for entry in path.iterdir() if entry.name.isdecimal() and metadata.is_export(entry)]
    return sorted(found, key=lambda name: (int(name), name))


def from_options(options: Options, name: str) -> Loaded:
    """A model with fresh weights from the seed (or `--weights`), for measuring and trying out."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.run.seed)
        module = _build(options)
    if options.model.weights is not None:
        from conveyor.models.weights import load_weights

        load_weights(module, Path(options.model.weights), replace_head=options.model.replace_head)
    return _loaded(options, module, {"name": name, "version": "1"})


def from_weights(
    options: Options, tensors: "Mapping[str, Tensor]", spec: Mapping[str, Any], class_names: Sequence[str] = ()
) -> Loaded:
    """A model from its options and its weights; `class_names` as they were in training, else those of the data set."""
    module = _build(options)
    try:
        module.load_state_dict(
            {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"the weights of {spec['name']} do not fit the model {options.model.model}: {reason}") from None
    return _loaded(options, module, spec, class_names)


def _loaded(options: Options, module: "nn.Module", spec: Mapping[str, Any], class_names: Sequence[str] = ()) -> Loaded:
    info = _info(options)
    classes = options.model.num_classes or info.num_classes
    names = next((names for names in (tuple(class_names), info.class_names) if len(names) == classes), ())
    plain = {name: value for name, value in _plain(options).items() if name not in ("run_dir", "data_dir")}
    described = {
        **spec,
        "num_classes": classes,
        "model": options.model.model,
        "format": "torch",
        "batch": None,
        "options": plain,
    }
    return Loaded(module.eval(), names, preprocessing_of(options, info), described)


def preprocessing_of(options: Options, info: DatasetInfo) -> Preprocessing:
    """What validation does to an image, as numbers."""
    size = options.model.image_size or info.image_size
    photographs = info.kind == "files"
    return Preprocessing(
        image_size=size,
        channels=info.channels,
        in_channels=options.model.in_channels or info.channels,
        normalization=catalogue.normalization(options.data, info, options.model.model),
        resize=(options.data.validation_resize or size * 256 // 224) if photographs else None,
    )


def _load_export(path: Path, name: str | None = None) -> Loaded:
    document = metadata.read(path)
    form = document["format"]
    file = path / metadata.MODEL_FILES[form]
    version = str(int(path.name)) if path.name.isdecimal() else str(document.get("version", "1"))
    spec = {key: value for key, value in document.items() if key not in ("files", "labels", "preprocessing")}
    spec |= {"name": name or document.get("name") or path.resolve().name, "version": version}
    preprocessing = Preprocessing.from_json(document["preprocessing"])
    labels = tuple(str(label) for label in document.get("labels", ()))
    if form != "torch":
        return Loaded(None, labels, preprocessing, spec, artifact=file)
    from safetensors.torch import load_file

    options = Options.from_mapping(_known_options(document["options"]), where=str(path))
    loaded = from_weights(options, load_file(str(file)), spec)
    return Loaded(loaded.module, labels, preprocessing, {**spec, "batch": None})


def _build(options: Options) -> "nn.Module":
    from conveyor import models

    info = _info(options)
    name = options.model.model or ("resnet8" if info.image_size <= 64 else "resnet50")
    module: nn.Module = models.build_from(
        options.model,
        name=name,
        num_classes=options.model.num_classes or info.num_classes,
        in_channels=options.model.in_channels or info.channels,
        image_size=options.model.image_size or info.image_size,
    )
    return module


def _info(options: Options) -> DatasetInfo:
    """The data set's numbers; its files may be far away from where a model is served, then the options must do."""
    try:
        return catalogue.info(options.data)
    except UserError:
        if options.model.num_classes is None:
            raise
    size = options.model.image_size or 224
    return DatasetInfo(
        name="folder",
        train_images=0,
        validation_images=0,
        num_classes=options.model.num_classes,
        image_size=size,
        channels=min(options.model.in_channels or 3, 3),
        kind="files",
        default_normalization="imagenet",
    )


def _known_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options that this version knows; where a model came from does not matter once it is trained."""
    return {
        name: value
        for name, value in given.items()
        if name in specs() and name not in ("run_dir", "checkpoint_path", "weights")
    }


def _plain(options: Options) -> dict[str, Any]:
    """The changed options as plain JSON."""
    return {name: to_plain(value) for name, value in options.changed().items()}
