"""Answers averaged over views of an image."""

import torch
from torch import nn

from conveyor.evaluate.views import Views


class Corner(nn.Module):
    """Two logits that give away the view: the pixels of the upper corners."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.stack([images[:, 0, 0, 0], images[:, 0, 0, -1]], dim=1)


def test_views_average_the_answers() -> None:
    image = torch.arange(16.0).reshape(1, 1, 4, 4)
    model = Corner()
    assert model(image).tolist() == [[0.0, 3.0]]
    assert Views(model, "mirror")(image).tolist() == [[1.5, 1.5]]
    # Moved so that the reflected pixel (1, 1) = 5 comes to the corner, and so that (1, 1) itself does; right: 6 both.
    centre, first, second = 1.5, (5 + 6) / 2, (5 + 6) / 2
    expected = centre / 2 + (first + second) / 4
    assert Views(model, "mirror-shift")(image).tolist() == [[expected, expected]]


def test_the_inner_model_follows_the_mode() -> None:
    model = nn.BatchNorm2d(1)
    views = Views(model, "mirror").eval()
    assert not model.training
    views.train()
    assert model.training
