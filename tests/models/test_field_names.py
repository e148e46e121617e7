"""Names and shapes of whole state dicts against those of the libraries that made them known.

The digests are of the lines `name shape`, sorted, of the state dicts that torchvision 0.29 and timm 1.0 make. All names
of a model and all shapes go into one, so a single tensor that is called otherwise shows.
"""

import hashlib
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from conveyor import models
from conveyor.models.library_names import layer_names
from conveyor.models.weights import translate

SAME_NAMES = {
    "resnet18": "5191d63ec3989592",
    "resnet26": "8b0617f7587b6ed7",
    "resnet34": "f8de2a1812ef85e4",
    "resnet50": "a87e91cd6bd1f939",
    "resnet101": "dbc3ca74fffafc72",
    "resnet152": "7d486dbdc941506e",
    "resnext50_32x4d": "20929ac81dfcc94f",
    "resnext101_32x4d": "8090531347ec9fa8",
    "resnext101_32x8d": "5068f88fa77e6142",
    "efficientnet_b0": "9311fe3ac4384e5f",
    "efficientnet_b7": "0f9ff17f2dcc8c04",
    "efficientnet_lite0": "335464100f8fc06c",
    "efficientnet_lite4": "c01f4fa098520aa9",
    "mobilenet_v2": "9b97d319a1b6986f",
    "mobilenet_v3_small": "22fa0144a5216f92",
    "mobilenet_v3_large": "c9cae77a0d37db0e",
    "squeezenet": "142983e4c19c76ad",
}
TORCHVISION = {
    "efficientnet_b0": "98a6d92c040c4bca",
    "efficientnet_b4": "f55c08c98724c959",
    "efficientnet_b7": "f44ee38885b1d8f5",
    "mobilenet_v2": "e3eb10f890f74c6e",
    "mobilenet_v3_small": "8fee267f118ca2d7",
    "mobilenet_v3_large": "555a3f5e3bcc126e",
}


def digest(state: dict[str, torch.Tensor]) -> str:
    lines = sorted(f"{name} {tuple(tensor.shape)}" for name, tensor in state.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return models.build(name)


def as_torchvision(name: str, model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The state dict under torchvision's names; its MobileNet v3 has a dense layer where we have a 1x1 convolution."""
    theirs = {ours: field for field, ours in layer_names(model) if field.startswith(("features.", "classifier."))}
    for key, tensor in model.state_dict().items():
        module, _, field = key.rpartition(".")
        dense = "_v3_" in name and key == "conv_head.weight"
        yield f"{theirs[module]}.{field}", tensor[:, :, 0, 0] if dense else tensor


@pytest.mark.parametrize("name", SAME_NAMES)
def test_our_names_are_the_fields(name: str) -> None:
    assert digest(on_meta(name).state_dict()) == SAME_NAMES[name]


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision_names_are_known(name: str) -> None:
    model = on_meta(name)
    state = dict(as_torchvision(name, model))
    assert digest(state) == TORCHVISION[name]
    assert list(translate(model, state)) == list(model.state_dict())
