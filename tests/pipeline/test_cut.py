"""Stages composed equal the whole model bit for bit, wherever it is cut."""

import operator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conveyor import models
from conveyor.errors import UserError
from conveyor.models.layers import norms
from conveyor.models.units import trace
from conveyor.numerics import convolution
from conveyor.numerics.context import keyed
from conveyor.pipeline.cut import Stage, cut, shared_parameters
from conveyor.pipeline.stage_io import arrive, depart
from conveyor.training.stage_lane import together

Result = tuple[Tensor, dict[str, Tensor]]


def make(name: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    model = models.build(name, num_classes=3, **options)
    return model.to(memory_format=torch.channels_last)


def images(size: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, size, size).contiguous(memory_format=torch.channels_last)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def whole(model: nn.Module, x: Tensor) -> Result:
    model.zero_grad(set_to_none=True)
    with keyed(1, 2, 3):
        y = model(x)
    y.square().sum().backward()
    return y.detach(), gradients(model)


def separately(model: nn.Module, stages: list[Stage], x: Tensor) -> Result:
    """Each stage runs and differentiates on its own, as in another process; what it received must stay as it was."""
    model.zero_grad(set_to_none=True)
    received, sent = [], []
    tensors: tuple[Tensor, ...] = (x,)
    with keyed(1, 2, 3):
        for stage in stages:
            leaves = tuple(one.detach().requires_grad_(bool(received)) for one in tensors)
            copies = [one.clone() for one in leaves]
            tensors = stage(*leaves)
            assert all(torch.equal(one, kept) for one, kept in zip(leaves, copies, strict=True))
            received.append(leaves)
            sent.append(tensors)
    (y,) = tensors
    y.square().sum().backward()
    for index in range(len(stages) - 2, -1, -1):
        pairs = [(one, leaf.grad) for one, leaf in zip(sent[index], received[index + 1], strict=True)]
        torch.autograd.backward(
            [one for one, _ in pairs if one.requires_grad], [grad for one, grad in pairs if one.requires_grad]
        )
    return y.detach(), gradients(model)


def joined(model: nn.Module, stages: list[Stage], x: Tensor) -> Result:
    """All stages in one differentiation."""

    def run(first: Tensor) -> Tensor:
        tensors: tuple[Tensor, ...] = (first,)
        for stage in stages:
            tensors = stage(*tensors)
        return tensors[0]

    model.zero_grad(set_to_none=True)
    with keyed(1, 2, 3):
        y = run(x)
    y.square().sum().backward()
    return y.detach(), gradients(model)


def assert_equal(left: Result, right: Result) -> None:
    assert torch.equal(left[0], right[0])
    assert set(left[1]) == set(right[1])
    assert all(torch.equal(gradient, right[1][name]) for name, gradient in left[1].items())


@pytest.mark.parametrize(
    ("name", "gap"),
    [("resnet18", 6), ("resnet50", 5), ("resnext50", 5), ("efficientnet_b0", 12), ("mobilenet_v3_small", 12)],
)
def test_every_cut_of_the_large_nets_many_at_a_time(name: str, gap: int) -> None:
    """Run i cuts before units i, i + gap, i + 2 gap...: together every cut there is."""
    model, x = make(name), images(40)
    expected = whole(model, x)
    num_units = len(trace(model, 40))
    for first in range(1, gap + 1):
        stages = cut(model, range(first, num_units, gap))
        assert_equal(separately(model, stages, x), expected)


@pytest.mark.parametrize("options", [{}, {"norm": "none"}, {"shortcut": "C"}])
def test_every_single_cut_of_a_small_net(options: dict[str, object]) -> None:
    name = "cifar_resnet8" if options else "cifar_resnet20"
    model, x = make(name, **options), images(16)
    expected = whole(model, x)
    for point in range(1, len(trace(model, 16))):
        stages = cut(model, [point])
        assert_equal(separately(model, stages, x), expected)
        if point % 5 == 0:
            assert_equal(joined(model, stages, x), expected)


@pytest.mark.conformance
@pytest.mark.parametrize(
    "name", ["resnet18", "resnet50", "resnext50", "efficientnet_b0", "mobilenet_v3_small", "mobilenet_v3_large"]
)
def test_every_single_cut_of_the_large_nets(name: str) -> None:
    model, x = make(name), images(40)
    expected = whole(model, x)
    for point in range(1, len(trace(model, 40))):
        assert_equal(separately(model, cut(model, [point]), x), expected)


@pytest.mark.parametrize("name", ["mobilenet_v2", "squeezenet", "toy_model_bn", "efficientnet_lite0", "resnet10"])
def test_the_other_families(name: str) -> None:
    size = 32 if name.startswith("toy") else 64
    options = {"bypass": True} if name == "squeezenet" else {}
    model, x = make(name, **options), images(size)
    expected = whole(model, x)
    stages = cut(model, range(1, len(trace(model, size))))
    assert_equal(separately(model, stages, x), expected)


def test_stages_hold_the_models_own_layers_under_their_names() -> None:
    model = make("resnet18")
    stages = cut(model, [20, 40])
    named = dict(model.named_parameters())
    found = {name: parameter for stage in stages for name, parameter in stage.named_parameters()}
    assert found.keys() == named.keys()
    assert all(found[name] is named[name] for name in named)
    keys = [key for stage in stages for key in stage.state_dict()]
    assert sorted(keys) == sorted(model.state_dict())
    assert shared_parameters(stages) == []


def test_statistics_gather_in_the_whole_model_and_modes_follow() -> None:
    model, x = make("cifar_resnet8"), images(16)
    stages = cut(model, [9])
    stages[1](*stages[0](x))
    assert all(count.item() == 1 for count in norms.pending(model)[2::3])
    for stage in stages:
        norms.commit(stage)
    assert model.get_submodule("layer3.0.bn2").num_batches_tracked.item() == 1
    for stage in stages:
        stage.eval()
    assert not model.get_submodule("bn1").training
    with torch.no_grad():
        (y,) = stages[1](*stages[0](x))
        assert torch.equal(y, model.eval()(x))


class Awkward(nn.Module):
    """Functions and methods in place, a tensor used after being overwritten, and one layer at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(3, 3, 1)
        self.scale = nn.Parameter(torch.full((3, 1, 1), 1.5))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        a = self.mix(x)
        b = a * self.scale
        c = torch.flatten(b, 2)
        c += 1
        d = operator.imul(c, 2.0)
        d.add_(0.5)
        F.relu(d, inplace=True)
        e = self.relu(self.mix(d.view(x.shape)) - 0.1)
        return (e * self.scale + x + self.relu(self.mix(a))).mean((2, 3))


def test_awkward_user_model_is_cut_anywhere() -> None:
    torch.manual_seed(0)
    model, x = Awkward(), torch.randn(2, 3, 4, 4)
    expected = whole(model, x)
    num_units = len(trace(model, 4))
    sharing = set()
    for point in range(1, num_units):
        stages = cut(model, [point])
        assert_equal(joined(model, stages, x), expected)
        sharing.update(shared_parameters(stages))
        y, found = separately(model, stages, x)
        assert torch.equal(y, expected[0])
        for name, gradient in expected[1].items():
            torch.testing.assert_close(found[name], gradient)
    assert sharing == {"mix.weight", "mix.bias", "scale"}


@pytest.mark.parametrize("points", [[0], [5, 5], [9, 3], [500]])
def test_impossible_points_are_refused(points: list[int]) -> None:
    with pytest.raises(UserError, match="between 1 and"):
        cut(make("cifar_resnet8"), points)


def test_no_points_is_one_stage() -> None:
    model, x = make("cifar_resnet8"), images(16)
    (stage,) = cut(model, [])
    assert_equal(separately(model, [stage], x), whole(model, x))


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0"])
def test_norms_stay_fused_inside_a_stage(name: str) -> None:
    """A fused model cut between blocks runs the same operations as in one piece, and the same bits come out."""
    model, x = make(name), images(40)
    model.train()
    if not norms.fuse(model):
        expected = whole(model, x)
        assert_equal(separately(model, cut(model, [20]), x), expected)
        return
    calls: list[str] = []
    for module in model.modules():
        if isinstance(module, nn.ReLU | nn.SiLU):
            module.register_forward_hook(lambda layer, inputs, output: calls.append(type(layer).__name__))
    expected = whole(model, x)
    in_one_piece = len(calls)
    found = trace(model, 40)
    after_blocks = [unit.index for unit in found if unit.path.endswith((".0.conv1", ".0.conv_pw"))]
    stages = cut(model, after_blocks[1:3])
    calls.clear()
    result = separately(model, stages, x)
    assert len(calls) == in_one_piece
    assert_equal(result, expected)


@pytest.mark.parametrize(
    ("name", "path"),
    [("resnet18", "layer2.0.act1"), ("efficientnet_b0", "blocks.5.0.act1"), ("efficientnet_b0", "act2")],
)
def test_a_norm_and_its_activation_may_be_cut_apart(name: str, path: str) -> None:
    model, x = make(name), images(40)
    model.train()
    norms.fuse(model)
    point = next(unit.index for unit in trace(model, 40) if unit.path == path)
    result = separately(model, cut(model, [point]), x)
    assert_equal(result, whole(model, x))


@pytest.mark.parametrize("path", ["act1", "blocks.0.0.act1", "blocks.2.0.act2"])
def test_a_frozen_norm_and_its_activation_may_be_cut_apart(path: str) -> None:
    """A frozen norm computes in evaluation mode, where the fused operation does not take it."""
    model, x = make("efficientnet_b0"), images(40)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(
            name.startswith(("blocks.3.", "blocks.4.", "blocks.5.", "blocks.6.", "conv_head", "classifier"))
        )
    for norm in norms.batch_norms(model):
        norm.frozen = not norm.weight.requires_grad
    model.train()
    norms.fuse(model)
    point = next(unit.index for unit in trace(model, 40) if unit.path == path)
    expected = whole(model, x)
    assert expected[1]
    assert_equal(separately(model, cut(model, [point]), x), expected)


class Biased(nn.Module):
    """Convolutions with a bias, the last of which is followed by a mean or by a flattening."""

    def __init__(self, behind: str) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 1), nn.Conv2d(64, 64, 1)
        self.behind = behind

    def forward(self, x: Tensor) -> Tensor:
        y = self.third(torch.relu(self.second(torch.relu(self.first(x)))))
        return y.mean((2, 3)) if self.behind == "mean" else torch.flatten(y, 1)


@pytest.mark.parametrize("behind", ["mean", "flatten"])
def test_a_bias_has_the_same_gradient_wherever_the_model_is_cut(behind: str) -> None:
    torch.manual_seed(0)
    model, x = Biased(behind).to(memory_format=torch.channels_last), images(12)
    convolution.install(model)
    expected = whole(model, x)
    for point in range(1, len(trace(model, 12))):
        assert_equal(over_the_wire(model, cut(model, [point]), x), expected)


def over_the_wire(model: nn.Module, stages: list[Stage], x: Tensor) -> Result:
    """`separately` for two stages, with tensors and gradients as they cross between workers."""
    model.zero_grad(set_to_none=True)
    sent = depart(stages[0](x))
    received = [one.detach().clone().requires_grad_() for one in sent]
    (y,) = stages[1](*arrive(received))
    y.square().sum().backward()
    torch.autograd.backward(sent, [one.grad for one in received])
    return y.detach(), gradients(model)


class Spare(nn.Module):
    """Has a state that its forward pass does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.inner = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Module()
        self.inner.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("table", torch.arange(3))
        self.inner.register_buffer("turned", torch.arange(3, -1, -1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x)[:, self.inner.turned])


def test_stages_have_the_state_of_the_model_also_what_no_unit_uses() -> None:
    model = Spare()
    stages = cut(model, [1])
    assert together(stages).state_dict().keys() == model.state_dict().keys()
    held = {name: tensor for stage in stages for name, tensor in stage.state_dict(keep_vars=True).items()}
    assert held.keys() == model.state_dict().keys()
    assert all(tensor is held[name] for name, tensor in model.state_dict(keep_vars=True).items())
    assert [name for name, _ in stages[0].named_parameters()] == ["one.weight", "one.bias", "inner.weight"]
