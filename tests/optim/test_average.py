"""Averages of weights and of the statistics that belong to them."""

import math

import pytest
import torch
from torch import nn

from conveyor.errors import UserError
from conveyor.optim.average import Ema, average


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))


def test_mean_is_exact_in_float64() -> None:
    states = [{"w": torch.tensor([value]), "n": torch.tensor(count)} for count, value in enumerate([1e8, 1.0, -1e8])]
    averaged = average(iter(states))
    assert averaged["w"].dtype == torch.float32
    assert averaged["w"].item() == pytest.approx(1 / 3)
    assert averaged["n"].item() == 2


def test_exponential_from_the_oldest() -> None:
    states = [{"w": torch.tensor([value], dtype=torch.float16)} for value in (1.0, 2.0, 4.0)]
    averaged = average(iter(states), 0.5)
    assert averaged["w"].dtype == torch.float16
    assert averaged["w"].item() == 0.5 * (0.5 * 1 + 0.5 * 2) + 0.5 * 4


def test_inputs_are_untouched() -> None:
    states = [{"w": torch.tensor([value], dtype=torch.float64)} for value in (1.0, 3.0)]
    assert average(states)["w"].item() == 2
    assert average(states, 0.5)["w"].item() == 2
    assert [state["w"].item() for state in states] == [1, 3]


def test_nothing_or_different_models_are_refused() -> None:
    with pytest.raises(UserError, match="no checkpoint"):
        average([])
    with pytest.raises(UserError, match="different models"):
        average([{"a": torch.ones(1)}, {"b": torch.ones(1)}])
    with pytest.raises(UserError, match="no checkpoint"):
        average([], 0.9)


def test_ema_by_hand_including_statistics() -> None:
    net = model()
    ema = Ema(net, 0.5)
    wanted = {name: value.clone().double() for name, value in net.state_dict().items()}
    for step in range(12):
        with torch.no_grad():
            for value in net.state_dict().values():
                value.add_(step)
        ema.update(step + 1)
        decay = min(0.5, (1 + step) / (10 + step))
        for name, value in net.state_dict().items():
            wanted[name] = value.double() if "tracked" in name else decay * wanted[name] + (1 - decay) * value.double()
    state = ema.state_dict()
    assert set(state) == set(net.state_dict())
    for name, value in state.items():
        torch.testing.assert_close(value.double(), wanted[name], rtol=1e-5, atol=1e-5)


def test_ema_is_applied_and_taken_back() -> None:
    net = model()
    ema = Ema(net, 0.9)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with torch.no_grad():
        net[1].running_var.mul_(4)
        net[0].weight.add_(1)
    now = {name: value.clone() for name, value in net.state_dict().items()}
    with ema.applied():
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(torch.equal(value, now[name]) for name, value in net.state_dict().items())


def test_ema_continues_from_its_state() -> None:
    def move(net: nn.Module) -> None:
        with torch.no_grad():
            for value in net.parameters():
                value.mul_(0.9)

    straight, resumed = model(), model()
    whole, first = Ema(straight, 0.99), Ema(resumed, 0.99)
    for step in range(1, 5):
        move(straight)
        whole.update(step)
    for step in range(1, 3):
        move(resumed)
        first.update(step)
    second = Ema(resumed, 0.99)
    second.load_state_dict({name: value.clone() for name, value in first.state_dict().items()})
    for step in range(3, 5):
        move(resumed)
        second.update(step)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_an_average_that_the_checkpoint_lacks_is_named() -> None:
    ema = Ema(nn.Sequential(nn.Linear(2, 2)), 0.9)
    assert set(ema.state_dict()) == {"0.weight", "0.bias"}
    with pytest.raises(UserError, match="average of"):
        ema.load_state_dict({})


def test_ema_of_half_weights_is_float32() -> None:
    net = nn.Linear(2, 2).half()
    ema = Ema(net, 0.999)
    ema.update(1)
    assert ema.state_dict()["weight"].dtype == torch.float32


def test_the_warm_up_of_the_decay_is_its_formula() -> None:
    net = model()
    average = Ema(net, 0.99, warmup=50)
    decays = [average.decay_at(step) for step in (1, 50, 100_000)]
    assert decays == pytest.approx([0.99 * (1 - math.exp(-1 / 50)), 0.99 * (1 - math.exp(-1)), 0.99])
    before = net[0].weight.detach().clone()
    with torch.no_grad():
        net[0].weight.add_(1.0)
    average.update(1)
    expected = decays[0] * before + (1 - decays[0]) * net[0].weight.detach()
    torch.testing.assert_close(average.state_dict()["0.weight"], expected)
    assert Ema(net, 0.99).decay_at(1) == pytest.approx(0.1)
