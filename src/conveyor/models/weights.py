"""Weights from files: our names, torchvision's, timm's and efficientnet_pytorch's, loaded strictly."""

import logging
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from conveyor.errors import UserError, first_line
from conveyor.models.layers.conv import SameConv
from conveyor.models.layers.norms import batch_norms
from conveyor.models.library_names import layer_names

logger = logging.getLogger(__name__)

# Under which key training programs keep the state dict in their files, the averaged weights first.
_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")
_SHOWN = 6


def load_weights(model: nn.Module, path: str | Path, replace_head: bool = False, *, outline: bool = False) -> list[str]:
    """Load the weights in the file `path` into `model`; returns the names that were left at their fresh values.

    Every tensor of the model must be in the file and the other way round. With `replace_head` a last layer for
    another number of classes is left out. With `outline` (a model on the meta device) no values are read.
    """
    return load_state(model, read_state(path, outline=outline), str(path), replace_head)


def read_state(path: str | Path, *, outline: bool = False) -> dict[str, Tensor]:
    """The state dict in a safetensors or torch file. Nothing in the file is executed. `outline`: names and shapes alone."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no weights file {path}.")
    try:
        if path.suffix == ".safetensors":
            return _shapes(path) if outline else load_file(path)
        _refuse_packed(path)
        content = torch.load(path, map_location="meta" if outline else "cpu", weights_only=True)
    except Exception as error:  # a damaged file can fail anywhere in the reader
        # torch advises to run the code in such a file
        told = "it holds other things than tensors" if "weights_only" in str(error) else first_line(error)
        raise UserError(f"{path} is no safetensors file or plain torch state dict ({told}).") from error
    return _unwrap(content, path)


def _refuse_packed(path: Path) -> None:
    """Refuse a zip file with more content than bytes: torch stores tensors unpacked, and reads packed ones into memory."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > path.stat().st_size:
            raise ValueError(f"it would unpack to {size} bytes, torch stores tensors unpacked")


def _shapes(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file on the meta device, from its header; of the right shape, not of the right type."""
    with safe_open(path, framework="pt") as file:
        return {name: torch.empty(file.get_slice(name).get_shape(), device="meta") for name in file.keys()}  # noqa: SIM118


def load_state(model: nn.Module, state: Mapping[str, Tensor], where: str, replace_head: bool = False) -> list[str]:
    """As `load_weights`, from a mapping; `where` is what an error calls it."""
    own = model.state_dict()
    found = translate(model, state)
    head = head_name(model)
    fresh = [name for name in own if _differs(name, own, found, head)]
    if fresh and not replace_head:
        theirs, ours = found[f"{head}.weight"].shape[0], own[f"{head}.weight"].shape[0]
        raise UserError(
            f"{where} is for {theirs} classes and the model has {ours}: add --replace-head to start with a new last layer."
        )
    for name in fresh:
        del found[name]
    for name, tensor in list(found.items()):
        if name in own:
            found[name] = _fitted(tensor, own[name])
    _check(own, found, fresh, where)
    for name in own:
        if name.endswith("num_batches_tracked"):
            found.setdefault(name, own[name])
    model.load_state_dict({**found, **{name: own[name] for name in fresh}})
    if fresh:
        _scale_down(model.get_submodule(head))
    note_differences(model, state)
    return fresh


def translate(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the names of `model`, as far as they are known; other names stay as they are."""
    own = model.state_dict()
    modules = dict(layer_names(model))
    result = {}
    for name, tensor in state.items():
        name = name.removeprefix("module.").removeprefix("_orig_mod.")
        module, _, field = name.rpartition(".")
        if name not in own and module in modules:
            name = f"{modules[module]}.{field}"
        result[name] = tensor
    return result


def head_name(model: nn.Module) -> str:
    """The path of the last layer with a weight: the one whose output are the classes."""
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    return layers[-1] if layers else ""


@torch.no_grad()
def _scale_down(head: nn.Module) -> None:
    """Scale a new head's weights down until none exceeds 1 / sqrt(inputs), and clear its bias.

    Some families draw them within 1 / sqrt(classes): with few classes the logits would be random and large, and the first
    updates would spoil the loaded features. Not zero: a ReLU behind the head (SqueezeNet) would pass no gradient.
    """
    assert isinstance(head, nn.Linear | nn.Conv2d)
    if head.weight.is_meta:
        return
    bound = head.weight[0].numel() ** -0.5
    head.weight.mul_(min(1.0, bound / max(float(head.weight.abs().max()), bound)))
    if head.bias is not None:
        head.bias.zero_()


def _differs(name: str, own: Mapping[str, Tensor], found: Mapping[str, Tensor], head: str) -> bool:
    """Whether this is a tensor of the head for another number of classes."""
    if name not in (f"{head}.weight", f"{head}.bias") or f"{head}.weight" not in found:
        return False
    theirs, ours = found[f"{head}.weight"], own[f"{head}.weight"]
    return theirs.dim() == ours.dim() and theirs.shape[0] != ours.shape[0] and theirs.shape[1] == ours.shape[1]


def _unwrap(content: object, path: Path) -> dict[str, Tensor]:
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        raise UserError(f"{path} holds no state dict.")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if len(tensors) < len(content):
        other = next(str(name) for name, value in content.items() if not isinstance(value, Tensor))
        raise UserError(f"{path} holds no state dict: {other!r} in it is no tensor.")
    return tensors


def _fitted(tensor: Tensor, like: Tensor) -> Tensor:
    """A dense weight as the 1x1 convolution it equals, and zeros for input channels that the file does not have."""
    if tensor.dim() == 2 and like.dim() == 4 and like.shape[2:] == (1, 1) and tensor.shape == like.shape[:2]:
        return tensor[:, :, None, None]
    if tensor.dim() == like.dim() == 4 and tensor.shape[1] == 3 and 3 < like.shape[1] <= 4:
        same = tensor.shape[0] == like.shape[0] and tensor.shape[2:] == like.shape[2:]
        return torch.cat([tensor, tensor.new_zeros(like[:, 3:].shape)], 1) if same else tensor
    return tensor


def _check(own: Mapping[str, Tensor], found: Mapping[str, Tensor], fresh: list[str], where: str) -> None:
    optional = {name for name in own if name.endswith("num_batches_tracked")}
    missing = [name for name in own if name not in found and name not in fresh and name not in optional]
    unknown = [name for name in found if name not in own]
    shapes = [
        f"{name} ({tuple(tensor.shape)} instead of {tuple(own[name].shape)})"
        for name, tensor in found.items()
        if name in own and tensor.shape != own[name].shape
    ]
    told = [
        _listed("is missing", missing),
        _listed("has names the model lacks:", unknown),
        _listed("has another shape for", shapes),
    ]
    said = "; ".join(part for part in told if part)
    if said:
        raise UserError(
            f"{where} does not fit the model: it {said}. Choose the --model (and norm) that it was made for."
        )


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what} {', '.join(names[:_SHOWN])}{more}"


def note_differences(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Say when the file's makers used another epsilon or padding than this model: not an error, but it costs accuracy."""
    torchvision = any(name.startswith("features.1.0.block.") for name in state)
    package = any(name.startswith("_blocks.") for name in state)
    norms = batch_norms(model)
    small = sum(parameter.numel() for parameter in model.parameters()) < 25e6
    if torchvision and small and norms and norms[0].eps != 1e-5:
        logger.warning("torchvision trained these weights with --norm-epsilon 1e-5; here it is %g", norms[0].eps)
    if package and not any(isinstance(module, SameConv) for module in model.modules()):
        logger.warning("these weights were trained with --padding same; here it is symmetric")
