"""Recomputation: the same gradients to the bit, statistics once, less memory."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from conveyor import models
from conveyor.errors import UserError
from conveyor.models.layers import norms, stochastic
from conveyor.numerics import context, recompute


class Dropping(nn.Module):
    """A block with everything that could differ in a second pass."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn = norms.BatchNorm(channels)
        self.act = nn.ReLU(inplace=True)
        self.drop = stochastic.Dropout(0.3)
        self.other_drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.other_drop(self.drop(self.act(self.bn(self.conv(x)))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Sequential(*[Dropping(8) for _ in range(3)])
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(self.stem(x)).mean((2, 3)))  # type: ignore[no-any-return]


BLOCKS = ["body.0", "body.1", "body.2"]


def net() -> Net:
    torch.manual_seed(1)
    made = Net()
    stochastic.name_layers(made)
    return made.to(memory_format=torch.channels_last)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    torch.manual_seed(5)
    for slot in range(2):
        images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(slot))
        with context.keyed(1, 7, slot):
            model(images).square().sum().backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    norms.commit(model)
    return found | dict(model.named_buffers())


@pytest.mark.parametrize("patterns", [["block"], ["stage"], [r"body\.[02]", r"stem|conv$"], ["body"]])
def test_gradients_and_statistics_are_the_same_to_the_bit(patterns: list[str]) -> None:
    plain, wrapped = net(), net()
    recompute.apply(wrapped, patterns, BLOCKS)
    wanted, got = gradients(plain), gradients(wrapped)
    assert set(wanted) == set(got)
    for name, value in wanted.items():
        assert torch.equal(value, got[name]), name


def test_key_of_the_first_pass_is_brought_back() -> None:
    """The backward pass may run outside of the micro-batch's context."""
    plain, wrapped = net(), net()
    recompute.apply(wrapped, ["block"], BLOCKS)
    for model in (plain, wrapped):
        torch.manual_seed(3)
        with context.keyed(1, 2, 3):
            loss = model(torch.ones(2, 3, 8, 8)).sum()
        loss.backward()
    for (name, first), second in zip(plain.named_parameters(), wrapped.parameters(), strict=True):
        assert first.grad is not None
        assert second.grad is not None
        assert torch.equal(first.grad, second.grad), name


def test_recomputation_inside_recomputation() -> None:
    """A recomputed stage around recomputed blocks: same bits, and the blocks' inputs are not kept either."""
    plain, nested, flat = net(), net(), net()
    for model in (nested, flat):
        recompute.apply(model, ["block"], BLOCKS)
    recompute.wrap(nested.body)
    wanted, got = gradients(plain), gradients(nested)
    for name, value in wanted.items():
        assert torch.equal(value, got[name]), name
    images = torch.randn(4, 3, 8, 8)
    kept = [recompute.saved_bytes(lambda model=model: model(images)) for model in (nested, flat, plain)]
    assert kept[0] < kept[1] < kept[2]


def test_backward_may_run_twice() -> None:
    model = net().eval()
    recompute.apply(model, ["block"], BLOCKS)
    loss = model(torch.ones(2, 3, 8, 8)).sum()
    weight = model.body[1].conv.weight
    first = torch.autograd.grad(loss, weight, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, weight)[0])


def test_overwritten_input_is_noticed() -> None:
    model = recompute.wrap(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    x = torch.ones(2, 3)
    loss = model(x).sum()
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_pass_that_differs_is_noticed() -> None:
    class Fickle(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x.sin().cos() if self.calls == 1 else x.sin()

    model = recompute.wrap(Fickle())
    loss = model(torch.ones(2, requires_grad=True)).sum()
    with pytest.raises(RuntimeError, match="A different number of tensors was saved"):
        loss.backward()


def test_nothing_stays_in_memory_after_the_backward_pass() -> None:
    model = recompute.wrap(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    x = torch.ones(2, 3)
    gone = weakref.ref(x)
    model(x).sum().backward()
    del x
    gc.collect()
    assert gone() is None


def test_which_modules_are_chosen() -> None:
    assert recompute.apply(net(), ["block"], BLOCKS) == BLOCKS
    assert recompute.apply(net(), ["stage"], BLOCKS) == ["body"]
    assert recompute.apply(net(), [r"body\.1", "bn"], BLOCKS) == ["body.0.bn", "body.1", "body.2.bn"]


@pytest.mark.parametrize(("pattern", "message"), [("(", "no regular expression"), ("layer9", "matches no module")])
def test_mistakes_are_explained(pattern: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        recompute.apply(net(), [pattern], BLOCKS)
    with pytest.raises(UserError, match="with blocks"):
        recompute.apply(net(), ["block"], [])


def test_saved_bytes_fall() -> None:
    model = models.build("cifar_resnet8", num_classes=10)
    images = torch.randn(4, 3, 32, 32)
    plain = recompute.saved_bytes(lambda: model(images))
    recompute.apply(model, ["block"], models.blocks(model))
    fewer = recompute.saved_bytes(lambda: model(images))
    assert 0 < fewer < 0.5 * plain
    assert all(not count for count in norms.pending(model)[2::3])


def test_saved_bytes_of_one_layer() -> None:
    layer = nn.Linear(10, 5)
    assert recompute.saved_bytes(lambda: layer(torch.ones(3, 10))) == 3 * 10 * 4


def test_names_classes_copies_and_tracing() -> None:
    model = net()
    names = list(model.state_dict())
    recompute.apply(model, ["block"], BLOCKS)
    assert list(model.state_dict()) == names
    assert isinstance(model.body[0], Dropping)
    twin = copy.deepcopy(model)
    assert twin.body[0].forward.forward.__self__ is twin.body[0]

    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return not list(m.children())

    graph: Any = Tracer().trace(model)
    assert "body.1.conv" in {node.target for node in graph.nodes}
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(torch.ones(1, 3, 8, 8)), twin.eval()(torch.ones(1, 3, 8, 8)))
