"""Outputs equal those of independent implementations with the same random weights, loaded by the field's names."""

from collections.abc import Callable

import pytest
import torch
from tests.models import independent as nets
from torch import Tensor, nn

from conveyor import models
from conveyor.models.weights import load_state

CASES: dict[str, tuple[str, float, Callable[..., Tensor]]] = {
    "resnet50": ("resnet50", 1e-5, lambda book, x: nets.resnet(book, x, (3, 4, 6, 3), 11)),
    "resnext50": ("resnext50_32x4d", 1e-5, lambda book, x: nets.resnet(book, x, (3, 4, 6, 3), 11, 2, 32)),
    "efficientnet_b0": ("efficientnet-b0", 1e-3, lambda book, x: nets.efficientnet_b0(book, x, 11)),
    "mobilenet_v2": ("mobilenet", 1e-5, lambda book, x: nets.mobilenet_v2(book, x, 11)),
    "mobilenet_v3_small": ("mobilenet_v3_small", 1e-3, lambda book, x: nets.mobilenet_v3_small(book, x, 11)),
}


@pytest.mark.parametrize("case", CASES)
def test_forward_equals_the_published_architecture(case: str) -> None:
    name, eps, function = CASES[case]
    torch.manual_seed(0)
    x = torch.randn(2, 3, 64, 64)
    book = nets.Book(eps=eps)
    with torch.no_grad():
        expected = function(book, x)
        model = models.build(name, num_classes=11).eval()
        assert load_state(model, book.state, "the test's state dict") == []
        found = model(x)
    assert (found - expected).abs().max() <= 2e-5 * expected.abs().max()
    assert model.state_dict()[_last_norm(model) + ".num_batches_tracked"] == 7


def _last_norm(model: nn.Module) -> str:
    return [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)][-1]


def test_v1_stride_differs_from_v1_5_in_place_only() -> None:
    first = models.build("resnet50", stride_in_1x1=True).get_submodule("layer2.0")
    second = models.build("resnet50").get_submodule("layer2.0")
    assert [first.conv1.stride, first.conv2.stride] == [(2, 2), (1, 1)]
    assert [second.conv1.stride, second.conv2.stride] == [(1, 1), (2, 2)]


def test_shortcut_a_picks_pixels_and_pads_channels_with_the_same_gradient() -> None:
    from conveyor.models.layers.layers import PaddedShortcut

    x = torch.randn(2, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    shortcut = PaddedShortcut(3, 8, 2)
    y = shortcut(x)
    assert torch.equal(y[:, :3], x[:, :, ::2, ::2])
    assert y[:, 3:].eq(0).all()
    assert torch.equal(y.detach(), shortcut(x.detach()))
    assert torch.autograd.gradcheck(shortcut, (x,))


@pytest.mark.parametrize(("size", "kernel"), [(7, 3), (8, 3), (8, 5), (9, 5)])
def test_same_padding_sees_tensorflows_windows(size: int, kernel: int) -> None:
    """SAME with stride 2: output ceil(size / 2), the odd row behind. The weight picks the window's first pixel."""
    from conveyor.models.layers.conv import SameConv

    conv = SameConv(1, 1, kernel, 2, kernel // 2, bias=False)
    with torch.no_grad():
        conv.weight.zero_()[0, 0, 0, 0] = 1
    x = torch.arange(1.0, size + 1).view(1, 1, 1, size).expand(1, 1, size, size).transpose(2, 3)
    y = conv(x)[0, 0, :, -1]
    total = max((-(-size // 2) - 1) * 2 + kernel - size, 0)
    starts = [2 * index - total // 2 for index in range(-(-size // 2))]
    last_column = 2 * (len(starts) - 1) - total // 2
    expected = [float(start + 1) if start >= 0 and 0 <= last_column < size else 0.0 for start in starts]
    assert y.tolist() == expected


@pytest.mark.parametrize("name", ["cifar_resnet8", "efficientnet_cifar", "squeezenet", "toy_model"])
def test_any_channels_classes_and_image_size(name: str) -> None:
    model = models.build(name, num_classes=7, in_channels=4, image_size=53)
    assert model(torch.randn(2, 4, 53, 53)).shape == (2, 7)


def test_bypass_adds_the_identity_around_four_fires() -> None:
    torch.manual_seed(0)
    model = models.build("squeezenet", num_classes=3, bypass=True).eval()
    fires = [module for module in model.features if type(module).__name__ == "Fire"]
    assert [fire.bypass for fire in fires] == [False, True, False, True, False, True, False, True]
    x = torch.randn(1, 128, 5, 5)
    plain = torch.cat(
        [fires[1].expand1x1(fires[1].squeeze(x).relu()).relu(), fires[1].expand3x3(fires[1].squeeze(x).relu()).relu()],
        1,
    )
    torch.testing.assert_close(fires[1](x), plain + x)
    without = models.build("squeezenet", num_classes=3)
    assert {name: p.shape for name, p in model.named_parameters()} == {
        name: p.shape for name, p in without.named_parameters()
    }
