"""Weights into a model: from a checkpoint, a run, a safetensors file or a plain torch state dict."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from conveyor.checkpoint import store
from conveyor.errors import UserError
from conveyor.models.weights import load_state, load_weights
from conveyor.options.model import ModelOptions


def load_into(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy `tensors` into the model; a name or shape that does not fit is an error that names it."""
    own = model.state_dict()
    missing = [name for name in own if name not in tensors]
    surplus = [name for name in tensors if name not in own]
    if missing or surplus:
        what = f"has no {missing[0]!r}" if missing else f"has {surplus[0]!r}, which the model lacks"
        count = len(missing) + len(surplus)
        raise UserError(f"{where} does not fit the model: it {what} ({count} names differ); is it of another --model?")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise UserError(
                f"{where} does not fit the model: {name} is {tuple(tensor.shape)}, the model needs {tuple(own[name].shape)}"
            )
    model.load_state_dict(dict(tensors))


def start_weights(model: nn.Module, options: ModelOptions, *, outline: bool = False) -> None:
    """Begin with `--weights`; only the weights are taken, the run starts at update 0.

    With `outline` the model is on the meta device, and only names and shapes of a file are read.
    """
    assert options.weights is not None
    path = Path(options.weights)
    if path.is_dir():
        found, state = store.load_newest(path)
        weights = state.best_weights()
        if outline:
            weights = {name: tensor.to("meta") for name, tensor in weights.items()}
        load_state(model, weights, str(found), options.replace_head)
        return
    load_weights(model, path, replace_head=options.replace_head, outline=outline)
