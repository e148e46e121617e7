"""Heat maps lie where the evidence is, and leave the model as it was."""

import pytest
import torch
from torch import nn

from conveyor import models
from conveyor.evaluate.heat_map import heat_maps


class Corner(nn.Module):
    """Class 0: bright on the left, class 1: bright on the right."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(1, 1, 1, bias=False)
        nn.init.ones_(self.features.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.features(images)
        half = maps.shape[3] // 2
        return torch.stack([maps[..., :half].mean((1, 2, 3)), maps[..., half:].mean((1, 2, 3))], 1)


def test_the_evidence_is_where_the_class_was_seen() -> None:
    images = torch.zeros(2, 1, 8, 8)
    images[0, 0, 1, 2] = 1.0
    images[1, 0, 6, 5] = 2.0
    found = heat_maps(Corner(), images, torch.tensor([0, 1]))
    assert found is not None
    assert found.shape == (2, 8, 8)
    assert [divmod(int(one.argmax()), 8) for one in found] == [(1, 2), (6, 5)]
    assert found.amax((1, 2)).tolist() == [1.0, 1.0]
    assert int((found > 0).sum()) == 2


def test_nothing_of_the_other_class_is_shown() -> None:
    images = torch.zeros(1, 1, 8, 8)
    images[0, 0, 1, 2] = 1.0
    found = heat_maps(Corner(), images, torch.tensor([1]))
    assert found is not None
    assert float(found.sum()) == 0.0


@pytest.mark.parametrize("name", ["resnet8", "efficientnet_b0", "mobilenet_v2", "squeezenet"])
def test_every_family_has_a_map_and_stays_as_it_was(name: str) -> None:
    model = models.build(name, num_classes=4, in_channels=3)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    found = heat_maps(model.train(), images, torch.tensor([1, 2]))
    assert found is not None
    assert min(found.shape[1:]) >= 4
    assert torch.isfinite(found).all()
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_network_without_maps_has_none() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    assert heat_maps(model, torch.rand(1, 1, 8, 8), torch.tensor([0])) is None
