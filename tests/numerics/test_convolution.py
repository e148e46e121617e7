"""Convolutions as matrix products equal the library's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

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
        patch.setattr(convolution, "_vectors", lambda: "AVX2")  # with wider ones the library does the larger kernels
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


@pytest.mark.parametrize(("kernel", "bias"), [(1, True), (1, False), (3, True), (3, False)])
def test_an_activation_may_change_the_result_in_place(kernel: int, bias: bool) -> None:
    """As in networks without norms; the gradients are those of an activation out of place."""
    torch.manual_seed(kernel)
    layer = nn.Conv2d(64, 64, kernel, padding=kernel // 2, bias=bias).to(memory_format=torch.channels_last)
    convolution.install(layer)
    x = torch.randn(2, 64, 8, 8).to(memory_format=torch.channels_last)
    wanted = torch.autograd.grad(F.relu(layer(x)).square().sum(), list(layer.parameters()))
    found = torch.autograd.grad(F.relu(layer(x), inplace=True).square().sum(), list(layer.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


needs_winograd = pytest.mark.skipif(
    not convolution.has_winograd(), reason="no C compiler, or vectors it was not measured with"
)


def three_by_three(channels: int, out: int) -> nn.Conv2d:
    layer = nn.Conv2d(channels, out, 3, padding=1, bias=False).to(memory_format=torch.channels_last)
    convolution.install(layer)
    assert convolution.way(layer.weight, Geometry.of(layer)) == "winograd"
    return layer


@needs_winograd
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 5), st.integers(1, 13), st.integers(1, 13), st.booleans())
def test_winograd_equals_float64(batch: int, channels: int, out: int, height: int, width: int, bias: bool) -> None:
    """Tiles that are cut by the border, pictures smaller than a tile, more or fewer tiles than a block or a kernel takes."""
    torch.manual_seed(batch * 1000 + channels * 100 + out)
    layer = nn.Conv2d(16 * channels, 16 * out, 3, padding=1, bias=bias).to(memory_format=torch.channels_last)
    x = torch.randn(batch, 16 * channels, height, width).to(memory_format=torch.channels_last)
    dy = torch.randn(batch, 16 * out, height, width).to(memory_format=torch.channels_last)
    found = [
        convolution.winograd_forward(x, layer.weight, layer.bias),
        convolution.winograd_input(dy, x, layer.weight),
        convolution.winograd_weights(dy, x, layer.weight),
    ]
    exact = gradients(layer.double(), x.double(), dy.double())[:3]
    for got, wanted in zip(found, exact, strict=True):
        assert (got - wanted).norm() <= 3e-6 * wanted.norm()
    assert found[2].stride() == layer.weight.stride()


@needs_winograd
def test_winograd_rounds_little_more_than_the_library() -> None:
    """The error of a layer like those of a ResNet, beside the library's own in float32: under twice as large."""
    torch.manual_seed(0)
    layer = three_by_three(256, 256)
    x = torch.randn(4, 256, 14, 14).to(memory_format=torch.channels_last)
    weight = layer.weight.detach()
    exact = F.conv2d(x.double(), weight.double(), padding=1)
    library_error = (F.conv2d(x, weight, padding=1) - exact).norm()
    assert (layer(x).detach() - exact).norm() < 2 * library_error


@needs_winograd
def test_winograd_is_the_same_for_any_batch_and_number_of_threads() -> None:
    """An image's result and gradient have the same bits alone and among others: layouts may deal them as they like."""
    torch.manual_seed(1)
    layer = three_by_three(64, 80)
    x = torch.randn(7, 64, 11, 10).to(memory_format=torch.channels_last)
    dy = torch.randn(7, 80, 11, 10).to(memory_format=torch.channels_last)
    together = gradients(layer, x, dy)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        several = gradients(layer, x, dy)
    finally:
        torch.set_num_threads(threads)
    for image in range(7):
        alone = gradients(layer, x[image : image + 1], dy[image : image + 1])
        for got, wanted, other in zip(alone[:2], together[:2], several[:2], strict=True):
            assert torch.equal(got[0], wanted[image])
            assert torch.equal(got[0], other[image])


@needs_winograd
def test_winograd_keeps_what_is_not_finite() -> None:
    """A bad value reaches every pixel that sees it, so that the search for bad layers finds it."""
    layer = three_by_three(64, 64)
    x = torch.randn(1, 64, 8, 8).to(memory_format=torch.channels_last)
    x[0, 3, 2, 5] = torch.inf
    assert not layer(x)[0, :, 1:4, 4:7].isfinite().any()


@needs_winograd
@pytest.mark.parametrize(("vectors", "otherwise"), [("AVX2", "patches"), ("AVX512", "library")])
def test_winograd_is_not_used_where_it_does_not_fit(
    vectors: str, otherwise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other kernels, strides, borders, groups, channels and tiny pictures; a machine without the compiled kernel."""
    monkeypatch.setattr(convolution, "_vectors", lambda: vectors)
    plain = nn.Conv2d(64, 64, 3, padding=1).to(memory_format=torch.channels_last)
    others = [
        nn.Conv2d(64, 64, 3, 2, padding=1), nn.Conv2d(64, 64, 3), nn.Conv2d(64, 72, 3, padding=1),
        nn.Conv2d(64, 64, 3, padding=1, groups=2), nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=2, dilation=2),
    ]  # fmt: skip
    for layer in others:
        assert (
            convolution.way(layer.weight.contiguous(memory_format=torch.channels_last), Geometry.of(layer))
            != "winograd"
        )
    for size, expected in {
        1: otherwise,
        2: otherwise,
        3: "winograd",
        4: "winograd",
        5: otherwise,
        7: "winograd",
    }.items():
        x = torch.randn(1, 64, size, size).contiguous(memory_format=torch.channels_last)
        assert convolution._chosen(x, plain.weight, Geometry.of(plain)) == expected
    wide = nn.Conv2d(512, 512, 3, padding=1).to(memory_format=torch.channels_last)
    assert (convolution.way(wide.weight, Geometry.of(wide)) == "winograd") == (vectors == "AVX2")
    monkeypatch.setattr(convolution, "library", lambda name: None)
    assert convolution.way(plain.weight, Geometry.of(plain)) == otherwise


@pytest.mark.parametrize("vectors", ["AVX2", "AVX512"])
@pytest.mark.parametrize(("channels", "kernel", "groups"), [(64, 3, 1), (64, 1, 1), (64, 5, 1), (64, 5, 64)])
def test_no_image_gives_no_gradient(
    vectors: str, channels: int, kernel: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty batch: zeros, whichever kernel the layer has; fresh memory must not show."""
    monkeypatch.setattr(convolution, "_vectors", lambda: vectors)
    layer = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=groups)
    layer = layer.to(memory_format=torch.channels_last)
    convolution.install(layer)
    for _ in range(3):
        torch.full_like(layer.weight, 7.0)  # what the allocator may hand out next
        x = torch.empty(0, channels, 8, 8).to(memory_format=torch.channels_last)
        y, dx, dw, db = gradients(layer, x, torch.empty(0, channels, 8, 8))
        assert y.shape == dx.shape == (0, channels, 8, 8)
        assert not dw.any()
        assert not db.any()


def huge_pixel(channels: int, place: tuple[int, int], value: float) -> tuple[nn.Conv2d, Tensor, Tensor]:
    """A layer, normal images, and the same with one pixel of one channel changed."""
    torch.manual_seed(channels + place[0])
    layer = nn.Conv2d(channels, 64, 3, padding=1, bias=False).to(memory_format=torch.channels_last)
    x = torch.randn(1, channels, 16, 16).to(memory_format=torch.channels_last)
    changed = x.clone()
    changed[0, 3, place[0], place[1]] = value
    return layer, x, changed


@pytest.mark.skipif(not convolution.has_winograd(), reason="no compiled Winograd kernels here")
@pytest.mark.parametrize("place", [(4, 4), (5, 6), (7, 7), (8, 11)])
@pytest.mark.parametrize("channels", [64, 128])
def test_a_huge_pixel_moves_what_does_not_see_it_by_rounding_only(channels: int, place: tuple[int, int]) -> None:
    """The bound of docs/precision.md: 49 (C + 20) 2^-24 M w inside the tiles of the pixel, no bit outside them."""
    value = 5e4
    layer, x, changed = huge_pixel(channels, place, value)
    geometry = Geometry.of(layer)
    assert convolution.way(layer.weight, geometry) == "winograd"
    before, after = (convolution.forward(images, layer.weight, None, geometry)[0].detach() for images in (x, changed))
    rows, columns = (torch.arange(16)[:, None], torch.arange(16)[None])
    sees = ((rows - place[0]).abs() <= 1) & ((columns - place[1]).abs() <= 1)
    # A tile of 4 x 4 results reads one pixel more on each side.
    in_tile = [
        (at // 4 * 4 - 1 <= where) & (where <= at // 4 * 4 + 4) for at, where in ((rows, place[0]), (columns, place[1]))
    ]
    touched = in_tile[0] & in_tile[1]
    assert torch.equal(before[:, ~touched], after[:, ~touched])
    exact = F.conv2d(x.double(), layer.weight.double(), padding=1)[0]
    blind = touched & ~sees
    error = (after.double() - exact)[:, blind].abs().max().item()
    weight = layer.weight.abs().max().item()
    assert 0 < error <= 49 * (channels + 20) * 2**-24 * value * weight


@pytest.mark.skipif(not convolution.has_winograd(), reason="no compiled Winograd kernels here")
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_a_pixel_that_is_not_finite_shows_in_all_that_see_it(value: float) -> None:
    """Forward and in both gradients: nothing turns it into a number again."""
    layer, _, changed = huge_pixel(64, (5, 6), value)
    convolution.install(layer)
    y, _, dw = gradients(layer, changed, torch.ones(1, 64, 16, 16).to(memory_format=torch.channels_last))
    assert not y[0, :, 4:7, 5:8].isfinite().any()
    assert not dw[:, 3].isfinite().any()


@pytest.mark.parametrize(("images", "channels", "size"), [(4, 64, 7), (3, 100, 5), (2, 1280, 7)])
def test_a_gradient_of_a_bias_is_the_same_in_any_order_of_memory(images: int, channels: int, size: int) -> None:
    """A mean behind the layer gives a view of one number for each channel, a flattening plain order, a cut channels last."""
    torch.manual_seed(0)
    seen = torch.randn(images, channels, 1, 1).expand(images, channels, size, size)
    expected = convolution.bias_gradient(seen.contiguous(memory_format=torch.channels_last))
    assert torch.equal(convolution.bias_gradient(seen), expected)
    assert torch.equal(convolution.bias_gradient(seen.contiguous()), expected)
