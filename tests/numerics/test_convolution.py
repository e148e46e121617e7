"""Convolutions as matrix products equal the library's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from conveyor.numerics import convolution
from conveyor.numerics.convolution import Geometry
from conveyor.numerics.native.build import library


def gradients(layer: nn.Conv2d, x: Tensor, dy: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    found = torch.autograd.grad(y, [x, *layer.parameters()], dy)
    return [y, *found]


@given(
    st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3, 5]), st.integers(1, 3),
    st.integers(0, 2), st.integers(5, 12), st.booleans(),
)  # fmt: skip
def test_results_and_gradients_equal_float64(
    batch: int, channels: int, out: int, kernel: int, stride: int, padding: int, size: int, bias: bool
) -> None:
    """Against the library's convolution in float64, for both kinds of layers."""
    torch.manual_seed(channels * 100 + out)
    layer = nn.Conv2d(channels, out, kernel, stride, padding, bias=bias).to(memory_format=torch.channels_last)
    x = torch.randn(batch, channels, size, size + 1).to(memory_format=torch.channels_last)
    dy = torch.randn_like(layer(x))
    exact = gradients(layer.double(), x.double(), dy.double())
    layer.float()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "FEWEST_CHANNELS", 1)
        patch.setattr(convolution, "PATCH_FLOATS", 500)
        convolution.install(layer)
        found = gradients(layer, x, dy)
    assert "_conv_forward" in vars(layer)
    for got, wanted in zip(found, exact, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)
    # Optimisers work on weights and gradients side by side.
    assert found[2].stride() == layer.weight.stride()


@pytest.mark.parametrize("images", [1, 4])
def test_patches_of_several_images_or_of_a_few_lines(images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that hold whole images, and blocks that hold part of one, with a rest."""
    x = torch.randn(5, 4, 7, 7).to(memory_format=torch.channels_last)
    layer = nn.Conv2d(4, 6, 3, padding=1).to(memory_format=torch.channels_last)
    dy = torch.randn_like(layer(x))
    per_image = 7 * 7 * 9 * 4
    monkeypatch.setattr(convolution, "PATCH_FLOATS", images * per_image if images > 1 else per_image // 3)
    wanted = torch.autograd.grad(layer(x), layer.weight, dy)[0]
    found = convolution.weight_gradient(dy, x, layer.weight, Geometry.of(layer))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    assert found.stride() == layer.weight.stride()


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding"), [(16, 5, 1, 2), (40, 5, 2, 2), (24, 7, 2, 3), (3, 5, 1, 0)]
)
def test_wide_depthwise_kernels_equal_float64(channels: int, kernel: int, stride: int, padding: int) -> None:
    """Whole and partial tiles of channels, borders, strides."""
    torch.manual_seed(channels)
    layer = nn.Conv2d(channels, channels, kernel, stride, padding, groups=channels)
    layer = layer.to(memory_format=torch.channels_last)
    x = torch.randn(3, channels, 9, 8).to(memory_format=torch.channels_last)
    dy = torch.randn_like(layer(x))
    exact = gradients(layer.double(), x.double(), dy.double())
    layer.float()
    convolution.install(layer)
    assert ("_conv_forward" in vars(layer)) == (library("depthwise") is not None)
    for got, wanted in zip(gradients(layer, x, dy), exact, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_layers_that_cannot_gain_stay_as_they_are() -> None:
    """Depthwise, dilated, reflected and narrow convolutions are left to the library."""
    layers = nn.ModuleList(
        [
            nn.Conv2d(64, 64, 3, groups=64),
            nn.Conv2d(64, 64, 3, dilation=2),
            nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect"),
            nn.Conv2d(3, 64, 7),
            nn.Conv2d(64, 64, 3, padding="same"),
        ]
    )
    convolution.install(layers)
    assert all("_conv_forward" not in vars(layer) for layer in layers)


def test_evaluation_and_other_types_use_the_library() -> None:
    """Without gradients, in float64 or in NCHW order the layer still works, to the bit as before."""
    layer = nn.Conv2d(64, 64, 1).to(memory_format=torch.channels_last)
    x = torch.randn(2, 64, 5, 5)
    wanted = nn.functional.conv2d(x, layer.weight, layer.bias)
    convolution.install(layer)
    assert torch.equal(layer(x), wanted)
    with torch.no_grad():
        assert torch.equal(layer(x.to(memory_format=torch.channels_last)), wanted)
    layer.double()
    assert layer(x.double()).dtype == torch.float64
