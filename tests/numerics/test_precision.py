"""Half precision: bit-equal to rounding operands, computing in float32 and rounding the result."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from conveyor import models
from conveyor.models.layers.conv import SameConv
from conveyor.models.layers.proxy_norm import ProxyNormActivation
from conveyor.numerics import context, convolution, recompute
from conveyor.numerics.half_choice import HalfChoice
from conveyor.numerics.half_policy import HalfPolicy, fast_half
from conveyor.numerics.precision import Precision
from conveyor.options import Options
from conveyor.options.precision import PrecisionOptions

HALVES = ["float16", "bfloat16"]


def precision(text: str = "16.32", **chosen: Any) -> Precision:
    return Precision.from_options(Options().replace(precision=text, **chosen).precision)


def test_value_object() -> None:
    assert precision("32.32") == Precision()
    assert precision("16.32", half_type="bfloat16").compute == torch.bfloat16
    assert (precision("16.16").compute, precision("16.16").master) == (torch.float16, torch.float16)
    assert precision("16.32").master == torch.float32
    cpu = torch.device("cpu")
    assert precision("32.32").describe(cpu) == "float32"
    assert precision("16.16").describe(cpu).startswith("float16 (")
    options = PrecisionOptions(precision="bf16")
    text = Precision.from_options(options, HalfChoice(native=True)).describe(cpu)
    assert ("slow on this processor" in text) != fast_half(cpu, torch.bfloat16)
    assert "slow" not in Precision.from_options(options, HalfChoice(native=False)).describe(cpu)
    assert options.text == "16.32 (bfloat16)"
    assert not HalfPolicy(stochastic=True).is_native(cpu)
    assert not fast_half(torch.device("meta"), torch.float16)


def test_float32_is_left_alone() -> None:
    layer = nn.Conv2d(3, 4, 3)
    assert precision("32.32").apply(layer) is layer
    assert layer(torch.ones(1, 3, 5, 5)).dtype == torch.float32


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "plain": (nn.Conv2d(6, 8, 3, padding=1, bias=False), (2, 6, 9, 9)),
    "strided with bias": (nn.Conv2d(6, 8, 3, stride=2, padding=1), (2, 6, 9, 9)),
    "grouped": (nn.Conv2d(6, 12, 3, groups=3), (2, 6, 9, 9)),
    "reflected": (nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"), (2, 6, 9, 9)),
    "text padding": (nn.Conv2d(6, 4, 3, padding="same"), (2, 6, 9, 9)),
    "own forward": (SameConv(6, 4, 3, 2, 1), (2, 6, 8, 8)),
    "linear": (nn.Linear(10, 7), (5, 10)),
    "linear without bias": (nn.Linear(10, 7, bias=False), (2, 5, 10)),
    "group norm": (nn.GroupNorm(2, 6), (4, 6, 5, 5)),
}


@pytest.mark.parametrize("half_type", HALVES)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_batch_norm_rounds_once(layout: torch.memory_format, half_type: str) -> None:
    """Like float32 followed by rounding; sums taken in another order may tip a value over to its neighbour."""
    half: torch.dtype = getattr(torch, half_type)
    torch.manual_seed(0)
    layer, reference = precision(half_type=half_type).apply(nn.BatchNorm2d(64)), nn.BatchNorm2d(64)
    images = torch.randn(8, 64, 9, 9).contiguous(memory_format=layout)
    x, wide = images.to(half).requires_grad_(), images.to(half).float().requires_grad_()
    y, y_wide = layer(x), reference(wide)
    gradient = torch.randn(y.shape).to(half)
    y.backward(gradient)
    y_wide.backward(gradient.float())
    assert x.grad is not None
    assert wide.grad is not None
    for got, wanted in ((y, y_wide), (x.grad, wide.grad)):
        assert got.dtype == half
        assert (got != wanted.to(half)).float().mean() < 1e-3
        torch.testing.assert_close(got.float(), wanted, rtol=torch.finfo(half).eps, atol=1e-6)
    torch.testing.assert_close(layer.weight.grad, reference.weight.grad, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(layer.running_var, reference.running_var)


@pytest.mark.parametrize("half_type", HALVES)
@pytest.mark.parametrize("text", ["16.32", "16.16"])
@pytest.mark.parametrize("name", LAYERS)
def test_bit_equal_to_rounding_around_float32(name: str, text: str, half_type: str) -> None:
    half: torch.dtype = getattr(torch, half_type)
    torch.manual_seed(0)
    original, shape = LAYERS[name]
    layer, reference = copy.deepcopy(original), copy.deepcopy(original)
    is_norm = "norm" in name
    if text == "16.16" or not is_norm:
        for parameter in reference.parameters():
            parameter.data = parameter.data.to(half).float()
    # The processor's own half adds in another order, so a sum close to the middle of two halves may round to the other one:
    # test_half_native.py compares those. The layers' weights depend on what was imported before.
    chosen = Options().replace(precision=text, half_type=half_type).precision
    Precision.from_options(chosen, HalfChoice(native=False)).apply(layer)
    images = torch.randn(shape)
    if len(shape) == 4:
        images = images.contiguous(memory_format=torch.channels_last)
    x = images.to(half).requires_grad_()
    wide = images.to(half).float().requires_grad_()
    y, y_wide = layer(x), reference(wide)
    assert y.dtype == half
    assert torch.equal(y, y_wide.to(half))
    gradient = torch.randn(y.shape).to(half)
    y.backward(gradient)
    y_wide.backward(gradient.float())
    assert x.grad is not None
    assert wide.grad is not None
    assert torch.equal(x.grad, wide.grad.to(half))
    for (key, got), wanted in zip(layer.named_parameters(), reference.parameters(), strict=True):
        assert got.grad is not None
        assert wanted.grad is not None
        assert got.grad.dtype == got.dtype == (half if text == "16.16" else torch.float32)
        rounded = wanted.grad if is_norm and text == "16.32" else wanted.grad.to(half).to(got.dtype)
        assert torch.equal(got.grad, rounded), key


def test_wide_kernels_keep_to_float32_sums() -> None:
    """Result and input gradient have the bits of the plain convolution where float32 training would take Winograd's."""
    torch.manual_seed(0)
    layer = nn.Conv2d(64, 64, 3, padding=1, bias=False).to(memory_format=torch.channels_last)
    assert convolution.way(layer.weight, convolution.Geometry.of(layer)) == "winograd" or not convolution.has_winograd()
    reference = copy.deepcopy(layer)
    reference.weight.data = reference.weight.data.half().float()
    precision("16.32").apply(layer)
    images = torch.randn(4, 64, 16, 16).contiguous(memory_format=torch.channels_last).half()
    x, wide = images.clone().requires_grad_(), images.float().requires_grad_()
    y, y_wide = layer(x), reference(wide)
    assert torch.equal(y, y_wide.half())
    gradient = torch.randn(y.shape).half()
    y.backward(gradient)
    y_wide.backward(gradient.float())
    assert x.grad is not None
    assert wide.grad is not None
    assert torch.equal(x.grad, wide.grad.half())


def test_float32_input_is_rounded_first() -> None:
    layer = precision().apply(nn.Conv2d(3, 4, 1, bias=False))
    images = torch.randn(1, 3, 4, 4)
    assert torch.equal(layer(images), layer(images.half()))


class Scale(nn.Module):
    """A layer that is neither convolution nor norm."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@pytest.mark.parametrize("text", ["16.32", "16.16"])
def test_unknown_layers_round_operands_and_result(text: str) -> None:
    layer = precision(text).apply(Scale())
    x = torch.randn(50)
    y = layer(x)
    assert torch.equal(y, (x.half().float() * torch.tensor(1.1).half().float()).half())
    y.sum().backward()
    assert next(layer.parameters()).grad is not None
    assert isinstance(layer.factor, nn.Parameter)


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return models.build("cifar_resnet8", num_classes=10).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("text", ["16.32", "16.16"])
def test_network_trains_in_half(text: str) -> None:
    """Loss falls; types are right; names are unchanged; gradients are near those of float32."""
    model, reference = small_net(), small_net()
    names = list(model.state_dict())
    precision(text).apply(model)
    assert list(model.state_dict()) == names
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
    logits = model(images)
    assert logits.dtype == torch.float16
    scale = 128.0
    (functional.cross_entropy(logits.float(), labels) * scale).backward()
    (functional.cross_entropy(reference(images), labels) * scale).backward()
    weights = [(p, q) for p, q in zip(model.parameters(), reference.parameters(), strict=True) if p.dim() == 4]
    for got, wanted in weights:
        assert got.grad is not None
        assert wanted.grad is not None
        cosine = functional.cosine_similarity(got.grad.float().flatten(), wanted.grad.flatten(), dim=0)
        assert cosine > 0.99
    buffers = {name: value.dtype for name, value in model.named_buffers() if value.is_floating_point()}
    assert set(buffers.values()) == {torch.float32}


def test_half_needs_less_memory() -> None:
    images = torch.randn(4, 3, 32, 32)
    wide, half = small_net(), precision().apply(small_net())
    assert recompute.saved_bytes(lambda: half(images)) < 0.62 * recompute.saved_bytes(lambda: wide(images))


def test_survives_tracing_copying_and_recomputation() -> None:
    model = precision().apply(small_net())
    images = torch.randn(2, 3, 32, 32)
    wanted = model(images)

    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return not list(m.children())

    traced = fx.GraphModule(model, Tracer().trace(model))
    assert torch.equal(traced(images), wanted)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(twin(images), wanted)
    recompute.apply(twin, ["block"], models.blocks(twin))
    again = copy.deepcopy(twin)
    assert torch.equal(again(images), wanted)


@pytest.mark.parametrize("layer", [nn.Conv2d(200, 5, 3, padding=1), nn.Linear(200, 5)])
def test_half_partials(layer: nn.Module) -> None:
    """The sum over input channels is rounded after each 64 of them, so it strays further than a single rounding."""
    torch.manual_seed(0)
    exact = copy.deepcopy(layer).double()
    for parameter in exact.parameters():
        parameter.data = parameter.data.half().double()
    shape = (2, 200, 6, 6) if isinstance(layer, nn.Conv2d) else (99, 200)
    x = torch.randn(shape).half().requires_grad_()
    once = precision().apply(copy.deepcopy(layer))
    often = precision(half_partials=True).apply(copy.deepcopy(layer))
    reference = exact(x.detach().double())
    assert (often(x) - reference).abs().mean() > 1.3 * (once(x) - reference).abs().mean()
    torch.testing.assert_close(often(x).double(), reference, rtol=5e-3, atol=5e-3)
    gradients = []
    for model in (once, often):
        y = model(x)
        found = torch.autograd.grad(
            y, [x, *model.parameters()], torch.randn(y.shape, generator=torch.manual_seed(1)).half()
        )
        gradients.append(found)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("layer", [nn.Conv2d(1, 1, 1, bias=False), nn.Linear(1, 1, bias=False)])
def test_saturation(layer: nn.Module) -> None:
    x = torch.full((1, 1, 1, 1) if isinstance(layer, nn.Conv2d) else (1, 1), 300.0)
    nn.init.constant_(next(layer.parameters()), 300.0)
    assert precision().apply(copy.deepcopy(layer))(x).item() == float("inf")
    assert precision(saturate=True).apply(layer)(x).item() == 65504


def test_stochastic_activations_are_keyed_and_unbiased() -> None:
    layer = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.constant_(next(layer.parameters()), 0.333)
    net = precision(stochastic_rounding="all").apply(nn.Sequential(layer, nn.BatchNorm2d(1)))[0]
    x = torch.full((1, 1, 200, 200), 0.7777).half()
    with context.keyed(1, 2, 3):
        first = net(x)
        again = net(x)
    with context.keyed(1, 2, 4):
        other = net(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    exact = x.double() * torch.tensor(0.333).half().double()
    assert len(first.unique()) == 2
    assert abs(first.double().mean() - exact.mean()).item() < 5e-6


@pytest.mark.parametrize("layer", [nn.Conv2d(128, 2, 1, bias=False), nn.Linear(128, 2, bias=False)])
def test_saturating_partial_sums_stay_finite(layer: nn.Module) -> None:
    """64 x 40,000 overflows float16; with the opposite sign behind it the whole sum would be 0."""
    layer = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight.fill_(200.0)
    x = torch.full((1, 128, 1, 1) if isinstance(layer, nn.Conv2d) else (1, 128), 200.0)
    x[:, 64:] *= -1
    for saturate in (False, True):
        made = precision(half_partials=True, saturate=saturate).apply(copy.deepcopy(layer))
        assert bool(made(x).isfinite().all()) is saturate
    assert (made(x) == -65504).all()


@pytest.mark.parametrize("precision", ["16.16", "16.32"])
def test_a_layer_with_an_activation_inside_gives_half_numbers_too(precision: str) -> None:
    """Float32 would be rounded where a pipeline sends it to the next stage, and nowhere else."""
    layer = ProxyNormActivation(4, nn.ReLU(), 0.03)
    Precision.from_options(Options().replace(precision=precision, half_type="bfloat16").precision).apply(layer)
    assert layer(torch.randn(2, 4, 3, 3).bfloat16()).dtype == torch.bfloat16
