import numpy as np
import pytest
import torch
from tests.infer.small import small_net
from torch import nn

from conveyor.errors import UserError
from conveyor.infer.graph import ServingGraph, fold_norms, serving_graph
from conveyor.infer.preprocessing import Preprocessing

IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8))


def count_norms(module: nn.Module) -> int:
    return sum(isinstance(each, nn.BatchNorm2d) for each in module.modules())


def test_folding_keeps_the_function_and_removes_the_norms() -> None:
    net = small_net()
    folded = fold_norms(small_net())
    assert count_norms(net) == 8
    assert count_norms(folded) == 1, "only the norm after the sum stays"
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(folded(x), net(x), rtol=1e-5, atol=1e-5)


def test_a_network_that_cannot_be_traced_is_kept() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    net = Branching()
    assert fold_norms(net) is net


def test_shared_convolution_is_not_folded_twice() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bn(self.conv(x)) + self.conv(x)

    net = Shared().eval()
    net.bn.running_mean = torch.tensor([1.0, 2.0, 3.0])
    x = torch.randn(2, 3, 4, 4)
    expected = net(x)
    torch.testing.assert_close(fold_norms(net)(x), expected)


@pytest.mark.parametrize("normalization", ["imagenet", "unit", "none", "per-image", "mean", "centred", "cifar"])
def test_normalisation_is_inside(normalization: str) -> None:
    graph = ServingGraph(nn.Identity(), Preprocessing(image_size=16, normalization=normalization))
    x = IMAGES.permute(0, 3, 1, 2).double()
    if normalization == "imagenet":
        expected = (x / 255 - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor(
            [0.229, 0.224, 0.225]
        ).view(3, 1, 1)
    elif normalization == "unit":
        expected = x / 255
    elif normalization == "none":
        expected = x
    elif normalization == "per-image":
        mean = x.mean((1, 2, 3), keepdim=True)
        expected = (x - mean) / x.std((1, 2, 3), keepdim=True, unbiased=False)
    elif normalization == "centred":
        expected = (x - 127) / 128
    elif normalization == "mean":
        expected = x - torch.tensor([123.68, 116.78, 103.94]).view(3, 1, 1)
    else:
        expected = (x / 255 - torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)) / torch.tensor(
            [0.2023, 0.1994, 0.2010]
        ).view(3, 1, 1)
    torch.testing.assert_close(graph(IMAGES).double(), expected, rtol=1e-5, atol=1e-4)


def test_constant_image_does_not_divide_by_zero() -> None:
    graph = ServingGraph(nn.Identity(), Preprocessing(image_size=4, normalization="per-image"))
    assert torch.equal(graph(torch.full((1, 4, 4, 3), 9, dtype=torch.uint8)), torch.zeros(1, 3, 4, 4))


def test_extra_channels_are_zero() -> None:
    graph = ServingGraph(nn.Identity(), Preprocessing(image_size=16, in_channels=4, normalization="unit"))
    out = graph(IMAGES)
    assert out.shape[1] == 4
    assert not out[:, 3].any()


def test_the_original_is_untouched() -> None:
    net = small_net().train()
    serving_graph(net, Preprocessing(image_size=16))
    assert net.training
    assert count_norms(net) == 8
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_unknown_normalisation_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'imagenet'"):
        Preprocessing(image_size=8, normalization="imagenett")
