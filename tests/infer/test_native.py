"""The engine of compiled layers answers as the network itself does, for every kind of layer and every batch."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.nn import functional as F

from conveyor.errors import UserError
from conveyor.infer import native_layers as native
from conveyor.infer.engines.engine import as_source, open_engine
from conveyor.infer.engines.fusion import ACTIVATIONS, layers_of
from conveyor.infer.engines.native import NativeEngine, even_parts
from conveyor.infer.graph import ServingGraph, serving_graph
from conveyor.infer.native_network import Network, can_run
from conveyor.infer.native_plan import Plan
from conveyor.infer.preprocessing import Preprocessing
from conveyor.models import build
from conveyor.models.layers.conv import SameConv

pytestmark = pytest.mark.skipif(not native.available(), reason="no C compiler")

# One of each family and of each kind of layer: basic and bottleneck blocks, groups of 4 channels, shortcut A, depthwise
# kernels of 3 and 5 with squeeze-and-excitation, TensorFlow's padding, hard activations, joined branches, other norms.
MODELS = [
    ("resnet18", 64, {}), ("resnet50", 64, {}), ("resnext50", 64, {}), ("cifar_resnet8", 32, {}),
    ("cifar_resnext11", 32, {}), ("efficientnet_b0", 64, {}), ("efficientnet_lite0", 64, {}), ("mobilenet_v2", 64, {}),
    ("mobilenet_v3_small", 64, {}), ("squeezenet", 64, {}), ("cifar_fast", 32, {}), ("efficientnet_b0", 64, {"group_dim": 16}),
    ("squeezenet", 64, {"bypass": True}), ("resnet14", 64, {"norm": "group"}), ("resnet14", 64, {"norm": "proxy"}), ("resnet14", 64, {"norm": "none"}),
]  # fmt: skip


def graph_of(name: str, size: int, normalization: str = "imagenet", **options: object) -> ServingGraph:
    torch.manual_seed(0)
    network = build(name, num_classes=10, image_size=size, **options).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0.0, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return serving_graph(network, Preprocessing(image_size=size, normalization=normalization))


def images(count: int, size: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def exact(graph: ServingGraph, x: np.ndarray) -> np.ndarray:
    """The network's own answers."""
    with torch.inference_mode():
        return graph(torch.from_numpy(x)).numpy()


@pytest.mark.parametrize(("name", "size", "options"), MODELS)
def test_every_family_answers_as_the_network_does(name: str, size: int, options: dict[str, object]) -> None:
    graph = graph_of(name, size, **options)
    assert can_run(graph)
    engine = NativeEngine(graph, 2)
    x = images(7, size)
    wanted = exact(graph, x)
    found = engine(x)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    for count in (1, 2, 3):
        again = engine(x[:count])
        assert np.abs(again - wanted[:count]).max() <= 1e-5 * np.abs(wanted).max(), f"{count} images"
    engine.close()


def test_batch_norms_of_the_shipped_models_are_folded() -> None:
    for name, size in (("resnet50", 64), ("efficientnet_b0", 64), ("mobilenet_v3_small", 64)):
        graph = graph_of(name, size)
        assert isinstance(graph.network, fx.GraphModule), name
        assert not any(isinstance(module, nn.BatchNorm2d) for module in graph.network.modules()), name


def test_nothing_of_a_resnet_or_an_efficientnet_is_left_to_torch() -> None:
    for name in ("resnet50", "resnext50", "efficientnet_b0"):
        plan = Plan(Network(graph_of(name, 64)), 1, 1)
        assert all(isinstance(call, native.Call) for call in plan.calls), name


def test_what_follows_a_convolution_runs_with_it() -> None:
    network = Network(graph_of("resnet50", 64))
    convolutions = [layer for layer in network.layers if isinstance(layer.module, nn.Conv2d)]
    assert len(convolutions) == 53
    assert sum(layer.residual is not None for layer in convolutions) == 16
    assert sum(layer.activation == "relu" for layer in convolutions) == 49, "all but the projections"
    gated = Network(graph_of("efficientnet_b0", 64))
    assert sum(layer.factors is not None for layer in gated.layers) == 16
    assert sum(layer.means is not None for layer in gated.layers) == 16


def test_a_sum_whose_sides_are_both_used_again_is_not_taken() -> None:
    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            y = self.second(x)
            return (torch.relu(y + x) + y).mean((2, 3))

    graph = serving_graph(Reused().eval(), Preprocessing(image_size=8, normalization="imagenet"))
    x = images(3, 8)
    np.testing.assert_allclose(NativeEngine(graph, 1)(x), exact(graph, x), rtol=1e-5, atol=1e-6)


def test_a_sum_with_one_value_per_channel_is_not_a_residual() -> None:
    class Broadcast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.beside = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            offset = self.beside(x.mean((2, 3), keepdim=True))
            return (self.conv(x) + offset).flatten(1)

    graph = serving_graph(Broadcast().eval(), Preprocessing(image_size=8, normalization="imagenet"))
    x = images(3, 8)
    np.testing.assert_allclose(NativeEngine(graph, 2)(x), exact(graph, x), rtol=1e-5, atol=1e-5)


def test_what_it_cannot_run_is_left_to_the_others() -> None:
    class Shaped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(x.shape[0], -1)[:, :4]

    preprocessing = Preprocessing(image_size=8, normalization="imagenet")
    assert not can_run(serving_graph(Shaped(), preprocessing))
    assert not can_run(graph_of("cifar_resnet8", 32, "per-image"))
    source = as_source(Shaped(), preprocessing)
    assert "native" not in source.engines()
    with pytest.raises(UserError, match=r"the engine native needs .*: choose from torch"):
        open_engine(source, "native")
    stored = dataclasses.replace(source, graph=None)
    with pytest.raises(UserError, match="the engine native cannot run"):
        open_engine(stored, "native")


def in_order(x: Tensor) -> Tensor:
    """[N, C, H, W] as [N, H, W, C]."""
    return x.permute(0, 2, 3, 1).contiguous()


@settings(deadline=None)
@given(
    images=st.integers(1, 3), groups=st.sampled_from([1, 1, 2, 6]), channels=st.integers(1, 20), outputs=st.integers(1, 40),
    kernel=st.sampled_from([1, 2, 3, 5]), stride=st.integers(1, 3), padding=st.integers(0, 2), height=st.integers(5, 11),
    width=st.integers(5, 11), activation=st.sampled_from(["none", *ACTIVATIONS.values()]), residual=st.booleans(),
    threads=st.integers(1, 3), gap=st.sampled_from([0, 16]),
)  # fmt: skip
def test_convolutions_equal_float64(
    images: int, groups: int, channels: int, outputs: int, kernel: int, stride: int, padding: int, height: int,
    width: int, activation: str, residual: bool, threads: int, gap: int,
) -> None:  # fmt: skip
    """Groups narrower and wider than a vector, rests of vectors, tiles and blocks, gaps between pixels."""
    torch.manual_seed(channels * 100 + outputs)
    conv = nn.Conv2d(channels * groups, outputs * groups, kernel, stride, padding, groups=groups)
    x = torch.randn(images, channels * groups, height, width)
    with torch.no_grad():
        wanted = conv.double()(x.double())
        added = torch.randn(wanted.shape) if residual else None
        wanted = ACTIVATE[activation](wanted if added is None else wanted + added)
        conv.float()
        layer = native.Convolution(conv, activation)
        spread = F.pad(in_order(x), (0, gap))[..., : channels * groups]
        y, beside = torch.empty(*in_order(wanted).shape), None if added is None else in_order(added)
        for call in layer.bind(spread, y, beside, None, threads):
            call()
    torch.testing.assert_close(y.double(), in_order(wanted), rtol=1e-5, atol=1e-5)


@settings(deadline=None)
@given(
    images=st.integers(1, 3), channels=st.integers(2, 40), kernel=st.sampled_from([3, 5, 7]), stride=st.integers(1, 3),
    same=st.booleans(), height=st.integers(5, 14), width=st.integers(5, 14),
    activation=st.sampled_from(["none", *ACTIVATIONS.values()]), threads=st.integers(1, 3),
)  # fmt: skip
def test_depthwise_convolutions_equal_float64(
    images: int, channels: int, kernel: int, stride: int, same: bool, height: int, width: int, activation: str,
    threads: int,
) -> None:  # fmt: skip
    torch.manual_seed(channels)
    conv = (SameConv if same else nn.Conv2d)(channels, channels, kernel, stride, kernel // 2, groups=channels)
    x = torch.randn(images, channels, height, width)
    with torch.no_grad():
        wanted = ACTIVATE[activation](conv.double()(x.double()))
        layer = native.Depthwise(conv.float(), activation)
        pixels, y, means = in_order(x), torch.empty(*in_order(wanted).shape), torch.empty(images, channels)
        for call in layer.bind(pixels, y, means, threads):
            call()
    torch.testing.assert_close(y.double(), in_order(wanted), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(means.double(), wanted.mean((2, 3)), rtol=1e-5, atol=1e-5)


ACTIVATE = {
    "none": lambda x: x, "relu": F.relu, "silu": F.silu, "relu6": F.relu6, "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid, "hardsigmoid": F.hardsigmoid,
}  # fmt: skip


@pytest.mark.parametrize("activation", list(ACTIVATIONS.values()))
def test_activations_over_their_whole_range(activation: str) -> None:
    """Far beyond where exp overflows; a NaN stays one."""
    x = torch.cat([torch.linspace(-100, 100, 4001), torch.tensor([torch.nan, 1e30, -1e30, 0.0])])
    conv = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.ones_(conv.weight)
    layer, y = native.Convolution(conv, activation), torch.empty(1, len(x), 1, 1)
    for call in layer.bind(x.view(1, -1, 1, 1), y, None, None, 1):
        call()
    torch.testing.assert_close(
        y.flatten().double(), ACTIVATE[activation](x.double()), rtol=1e-5, atol=1e-6, equal_nan=True
    )


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("size", [14, 7])
def test_winograd_with_transformed_kernels_equals_float64(relu: bool, size: int) -> None:
    torch.manual_seed(size)
    conv = nn.Conv2d(64, 96, 3, padding=1)
    x, added = torch.randn(4, 64, size, size), torch.randn(4, 96, size, size)
    layer = native.Convolution(conv, "relu" if relu else "none")
    pixels, beside, y = in_order(x), in_order(added), torch.empty(4, size, size, 96)
    assert layer.winograd is not None
    assert layer.winograd.pays(pixels)
    for call in layer.bind(pixels, y, beside, None, 2):
        call()
    with torch.no_grad():
        wanted = conv.double()(x.double()) + added
    wanted = wanted.relu() if relu else wanted
    assert (y - in_order(wanted)).norm() <= 3e-6 * wanted.norm()


def test_an_image_gets_the_same_bits_alone_and_among_others() -> None:
    graph = graph_of("efficientnet_b0", 64)
    engine, alone = NativeEngine(graph, 2), NativeEngine(graph, 1)
    x = images(6, 64)
    together = engine(x)
    for index in range(6):
        np.testing.assert_array_equal(alone(x[index : index + 1])[0], together[index])


def test_factors_go_into_the_weights_or_into_the_pixels() -> None:
    """Whichever is fewer; the answer is the same."""
    torch.manual_seed(0)
    for size, outputs in ((6, 8), (2, 40)):
        conv = nn.Conv2d(24, outputs, 1)
        x, factors = torch.randn(3, 24, size, size), torch.rand(3, 24)
        layer, pixels, y = native.Convolution(conv, "none"), in_order(x), torch.empty(3, size, size, outputs)
        for call in layer.bind(pixels, y, None, factors, 2):
            call()
        with torch.no_grad():
            wanted = conv(x * factors[:, :, None, None])
        torch.testing.assert_close(y, in_order(wanted), rtol=1e-5, atol=1e-5)


@given(st.integers(0, 300), st.integers(1, 9), st.integers(1, 8))
def test_parts_cover_everything_once(count: int, workers: int, most: int) -> None:
    parts = even_parts(count, workers, most)
    assert [index for part in parts for index in range(count)[part]] == list(range(count))
    sizes = [part.stop - part.start for part in parts]
    assert all(0 < size <= most for size in sizes)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    assert len(parts) % workers == 0 or len(parts) == count


def test_a_dense_layer_may_see_more_numbers_than_a_picture_has_channels() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 72, 3, padding=1), nn.Linear(72 * 32 * 32, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.flatten(self.conv(x), 1))

    graph = serving_graph(Flat().eval(), Preprocessing(image_size=32, normalization="imagenet"))
    x = images(2, 32)
    np.testing.assert_allclose(NativeEngine(graph, 1)(x), exact(graph, x), rtol=1e-4, atol=1e-4)


def test_identities_cost_nothing() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.drop, self.act = nn.Conv2d(3, 4, 1), nn.Dropout(0.5), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.drop(self.conv(x))).mean((2, 3))

    network = Network(serving_graph(Dropping().eval(), Preprocessing(image_size=8, normalization="unit")))
    assert [layer.activation for layer in layers_of(network.module, network.shapes)] == ["relu", "none"]
