"""Update rules against torch.optim, against numbers worked out by hand, and against their own promises."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conveyor import models
from conveyor.errors import UserError
from conveyor.numerics.threads import using_threads
from conveyor.optim.kinds import excluded
from conveyor.optim.muon import Muon, is_filter, orthogonalize
from conveyor.optim.optimizer import Optimizer, make_optimizer
from conveyor.options import Options
from conveyor.training.build_model import layer_rates


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 5)).to(
        memory_format=torch.channels_last
    )


def gradients_like(model: nn.Module, update: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(update)
    return [torch.randn(parameter.shape, generator=generator) for parameter in model.parameters()]


def rates(update: int) -> float:
    return 0.1 / (1 + update)


Reference = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@pytest.mark.parametrize(
    ("chosen", "reference"),
    [
        ({"optimizer": "sgd"}, lambda p: torch.optim.SGD(p, lr=1)),
        ({"optimizer": "momentum"}, lambda p: torch.optim.SGD(p, lr=1, momentum=0.9)),
        ({"optimizer": "momentum", "nesterov": True}, lambda p: torch.optim.SGD(p, lr=1, momentum=0.9, nesterov=True)),
        (
            {"optimizer": "momentum", "momentum": 0.8, "l2_regularization": 0.01},
            lambda p: torch.optim.SGD(p, lr=1, momentum=0.8, weight_decay=0.01),
        ),
        (
            {"optimizer": "rmsprop", "rmsprop_form": "torch", "rmsprop_decay": 0.95, "l2_regularization": 0.01},
            lambda p: torch.optim.RMSprop(p, lr=1, alpha=0.95, momentum=0.9, eps=1e-8, weight_decay=0.01),
        ),
        ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=1)),
        (
            {"optimizer": "adam", "l2_regularization": 0.1, "beta1": 0.8, "beta2": 0.99},
            lambda p: torch.optim.Adam(p, lr=1, weight_decay=0.1, betas=(0.8, 0.99)),
        ),
        ({"optimizer": "adamw", "weight_decay": 0.05}, lambda p: torch.optim.AdamW(p, lr=1, weight_decay=0.05)),
    ],
)
def test_equals_torch(chosen: dict[str, Any], reference: Reference) -> None:
    mine, theirs = small_model(), small_model()
    optimizer = make_optimizer(Options().replace(**chosen), mine.named_parameters())
    torch_optimizer = reference(list(theirs.parameters()))
    for update in range(5):
        optimizer.step(gradients_like(mine, update), rates(update), update)
        for parameter, gradient in zip(theirs.parameters(), gradients_like(theirs, update), strict=True):
            parameter.grad = gradient
        torch_optimizer.param_groups[0]["lr"] = rates(update)
        torch_optimizer.step()
    for (name, got), wanted in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-6, atol=2e-7, msg=name)


def one_weight(value: float = 1.0, **chosen: Any) -> tuple[nn.Parameter, Callable[[float, float], float]]:
    """A model of one weight; the function makes one update with a gradient and a rate and returns the weight."""
    weight = nn.Parameter(torch.tensor([[value]]))
    optimizer = make_optimizer(Options().replace(**chosen), [("weight", weight)])

    def step(gradient: float, rate: float) -> float:
        optimizer.step([torch.tensor([[gradient]])], rate, optimizer.steps)
        return weight.item()

    return weight, step


def test_rate_form_of_momentum() -> None:
    """m = 0.5 m + L g, w -= m: the old step is not rescaled when the rate changes."""
    _, step = one_weight(optimizer="momentum", momentum=0.5, momentum_form="rate")
    assert step(1.0, 0.1) == pytest.approx(0.9)
    assert step(1.0, 0.01) == pytest.approx(0.9 - 0.06)
    _, step = one_weight(optimizer="momentum", momentum=0.5, momentum_form="gradient")
    assert step(1.0, 0.1) == pytest.approx(0.9)
    assert step(1.0, 0.01) == pytest.approx(0.9 - 0.015)


def test_rate_form_with_nesterov() -> None:
    _, step = one_weight(optimizer="momentum", momentum=0.5, momentum_form="rate", nesterov=True)
    assert step(1.0, 0.1) == pytest.approx(1 - (0.1 + 0.5 * 0.1))
    assert step(2.0, 0.2) == pytest.approx(0.85 - (0.4 + 0.5 * 0.45))


def test_rmsprop_in_tensorflow_form() -> None:
    """s starts at 1, epsilon is inside the root, the rate is inside the momentum."""
    _, step = one_weight(optimizer="rmsprop", momentum=0.9, rmsprop_decay=0.75)
    square, moment, weight = 1.0, 0.0, 1.0
    for gradient, rate in [(2.0, 0.1), (-1.0, 0.05), (0.5, 0.2)]:
        square += 0.25 * (gradient**2 - square)
        moment = 0.9 * moment + rate * gradient / math.sqrt(square + 0.001)
        weight -= moment
        assert step(gradient, rate) == pytest.approx(weight, rel=1e-6)


@pytest.mark.parametrize("form", ["tensorflow", "torch"])
def test_rmsprop_without_momentum(form: str) -> None:
    _, step = one_weight(optimizer="rmsprop", momentum=0.0, rmsprop_decay=0.5, rmsprop_form=form, optimizer_epsilon=0.5)
    root = math.sqrt(0.5 + 0.5 * 4 + 0.5) if form == "tensorflow" else math.sqrt(0.5 * 4) + 0.5
    assert step(2.0, 0.1) == pytest.approx(1 - 0.1 * 2 / root)


def test_decoupled_decay_and_l2_with_zero_gradient() -> None:
    for optimizer in ("sgd", "momentum", "rmsprop", "adam", "adamw"):
        _, step = one_weight(optimizer=optimizer, weight_decay=0.25)
        assert step(0.0, 1.0) == pytest.approx(0.75), optimizer
    _, step = one_weight(optimizer="sgd", l2_regularization=0.25)
    assert step(0.0, 1.0) == pytest.approx(0.75)


def test_decay_and_l2_together_both_see_the_old_weight() -> None:
    _, step = one_weight(2.0, optimizer="sgd", weight_decay=0.25, l2_regularization=0.5)
    assert step(1.0, 0.1) == pytest.approx(2 - 0.1 * (1 + 0.5 * 2 + 0.25 * 2))


def test_decay_is_outside_momentum_and_l2_inside() -> None:
    _, decayed = one_weight(optimizer="momentum", weight_decay=0.1)
    _, inside = one_weight(optimizer="momentum", l2_regularization=0.1)
    assert decayed(0.0, 1.0) == pytest.approx(inside(0.0, 1.0)) == pytest.approx(0.9)
    assert decayed(0.0, 1.0) == pytest.approx(0.81)
    assert inside(0.0, 1.0) == pytest.approx(0.9 - (0.9 * 0.1 + 0.09))


def test_exclusion_kinds() -> None:
    names = dict(small_model().named_parameters())
    assert excluded(names.items(), ["norm"]) == {"1.weight", "1.bias"}
    assert excluded(names.items(), ["bias"]) == {"0.bias", "1.bias", "3.bias"}
    assert excluded(names.items(), ["1d"]) == {"0.bias", "1.weight", "1.bias", "3.bias"}
    assert excluded(names.items(), ["3."]) == {"3.weight", "3.bias"}
    assert excluded(names.items(), []) == set()


@pytest.mark.parametrize("option", ["weight_decay", "l2_regularization"])
def test_excluded_parameters_are_not_decayed(option: str) -> None:
    model, before = small_model(), small_model()
    chosen = {option: 0.5, "decay_exclude": ["norm"], "optimizer": "sgd"}
    optimizer = make_optimizer(Options().replace(**chosen), model.named_parameters())
    optimizer.step([torch.zeros_like(parameter) for parameter in model.parameters()], 0.1, 0)
    for (name, got), was in zip(model.named_parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(got, was if name.startswith("1.") else was * 0.95, msg=name)


def test_lars_by_hand() -> None:
    chosen = {"optimizer": "lars", "weight_decay": 0.01, "lars_eta": 0.02, "momentum": 0.5}
    weight, bias = nn.Parameter(torch.tensor([[3.0, 4.0]])), nn.Parameter(torch.tensor([1.0]))
    optimizer = make_optimizer(Options().replace(**chosen), [("fc.weight", weight), ("fc.bias", bias)])
    w, m = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)
    for update, rate in enumerate((0.1, 0.2)):
        g = torch.tensor([[0.6, 0.8]])
        q = 0.02 * w.norm() / (g.norm() + 0.01 * w.norm())
        m = 0.5 * m + rate * q * (g + 0.01 * w)
        w = w - m
        optimizer.step([g.clone(), torch.tensor([2.0])], rate, update)
        torch.testing.assert_close(weight.data, w)
    assert bias.item() == pytest.approx(1 - 0.1 * 2 - (0.5 * 0.2 + 0.2 * 2))


def test_lars_of_a_zero_weight_takes_the_plain_step() -> None:
    _, step = one_weight(0.0, optimizer="lars")
    assert step(1.0, 0.1) == pytest.approx(-0.1)


def test_orthogonal_step_of_muon() -> None:
    torch.manual_seed(0)
    for shape in ((2, 16, 40), (1, 40, 16), (3, 12, 12)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
        assert values.min() > 0.3
        assert values.max() < 1.3
    u, _, v = torch.linalg.svd(matrix := torch.randn(8, 30), full_matrices=False)
    cosine = torch.nn.functional.cosine_similarity(orthogonalize(matrix[None])[0].flatten(), (u @ v).flatten(), dim=0)
    assert cosine > 0.97


def test_muon_takes_filters_and_leaves_the_rest_to_momentum() -> None:
    model, twin = small_model(), small_model()
    optimizer = make_optimizer(Options().replace(optimizer="muon", nesterov=True), model.named_parameters())
    plain = make_optimizer(Options().replace(optimizer="momentum", nesterov=True), twin.named_parameters())
    before = small_model()[0].weight
    for update in range(2):
        optimizer.step(gradients_like(model, update), 0.1, update)
        plain.step(gradients_like(twin, update), 0.1, update)
    for (name, got), other in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        if name != "0.weight":
            assert torch.equal(got, other[1]), name
    assert 0.5 < torch.linalg.matrix_norm((model[0].weight - before).flatten(1), 2) / 0.2 < 1.3
    assert is_filter(torch.empty(8, 4, 3, 3))
    assert not is_filter(torch.empty(8, 1, 3, 3))


def test_gradient_factor_is_applied_first() -> None:
    weight, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    first = make_optimizer(Options(), [("w", weight)])
    second = make_optimizer(Options(), [("w", other)])
    first.step([torch.full((3,), 8.0)], 0.1, 0, gradient_factor=1 / 8)
    second.step([torch.full((3,), 8.0)], 0.1, 0, gradient_factor=torch.tensor(1 / 8))
    assert torch.equal(weight, other)
    assert weight[0].item() == pytest.approx(0.9)


@pytest.mark.parametrize("optimizer", ["momentum", "rmsprop", "adam", "lars", "muon"])
def test_state_continues_exactly(optimizer: str) -> None:
    straight, resumed = small_model(), small_model()
    options = Options().replace(optimizer=optimizer)
    whole = make_optimizer(options, straight.named_parameters())
    first = make_optimizer(options, resumed.named_parameters())
    for update in range(4):
        whole.step(gradients_like(straight, update), rates(update), update)
    for update in range(2):
        first.step(gradients_like(resumed, update), rates(update), update)
    stored = {name: value.clone() for name, value in first.state_dict().items()}
    second = make_optimizer(options, resumed.named_parameters())
    second.load_state_dict(stored)
    for update in range(2, 4):
        second.step(gradients_like(resumed, update), rates(update), update)
    for got, wanted in zip(resumed.parameters(), straight.parameters(), strict=True):
        assert torch.equal(got, wanted)
    assert second.steps == 4


def test_state_names_and_missing_state() -> None:
    model = small_model()
    optimizer = make_optimizer(Options(), model.named_parameters())
    assert set(optimizer.state_dict()) == {"step"} | {f"momentum/{name}" for name, _ in model.named_parameters()}
    with pytest.raises(UserError, match=r"mean/0\.weight"):
        make_optimizer(Options().replace(optimizer="adam"), model.named_parameters()).load_state_dict(
            optimizer.state_dict()
        )


def test_frozen_parameters_are_left_out() -> None:
    model = small_model()
    model[0].weight.requires_grad_(False)
    assert "0.weight" not in make_optimizer(Options(), model.named_parameters()).names


def test_nesterov_without_momentum_is_refused() -> None:
    with pytest.raises(UserError, match="nesterov"):
        make_optimizer(Options().replace(optimizer="adam", nesterov=True), [])


def test_layer_decay_halves_the_rate_from_block_to_block() -> None:
    """lr x decay^d, d layers below the head; the stem stands below the first block."""
    model = models.build("cifar_resnet8", num_classes=3)
    options = Options().replace(optimizer="sgd", layer_decay=0.5, lr_factors=("bias:4",))
    named = dict(model.named_parameters())
    with torch.no_grad():
        for value in named.values():
            value.zero_()
    optimizer = make_optimizer(options, named.items(), layer_rates=layer_rates(model, 0.5))
    gradients = gradients_like(model, 0)
    optimizer.step(gradients, 0.25, 0)
    depths = {"fc": 0, "layer3": 1, "layer2": 2, "layer1": 3, "conv1": 4, "bn1": 4}
    for (name, value), gradient in zip(named.items(), gradients, strict=True):
        own = 4 if name.endswith("bias") else 1
        assert torch.equal(value, -0.25 * own * 0.5 ** depths[name.partition(".")[0]] * gradient), name


def test_rate_factors_scale_the_step_and_not_the_decay() -> None:
    """w -= lr (factor g + l2 w): with no gradient both weights decay alike, with one the step is factor times as long."""
    for gradient in (0.0, 1.0):
        parameters = [("head.weight", torch.ones(3)), ("body.weight", torch.ones(3))]
        for _, value in parameters:
            value.requires_grad_()
        options = Options().replace(optimizer="sgd", l2_regularization=0.5, lr_factors=("head:4",))
        optimizer = make_optimizer(options, parameters)
        optimizer.step([torch.full((3,), gradient) for _ in parameters], 0.1, 0)
        head, body = (value.detach()[0].item() for _, value in parameters)
        assert body == pytest.approx(1 - 0.1 * (gradient + 0.5))
        assert head == pytest.approx(1 - 0.1 * (4 * gradient + 0.5))


@pytest.mark.parametrize("pair", ["bias", "bias:", "bias:x", ":2", "bias:0", "bias:-1", "bias:inf"])
def test_a_bad_rate_factor_is_refused(pair: str) -> None:
    with pytest.raises(UserError, match="NAME:FACTOR"):
        make_optimizer(Options().replace(lr_factors=(pair,)), small_model().named_parameters())


def test_muon_keeps_the_length_of_filters_when_asked() -> None:
    model = nn.Conv2d(6, 8, 3, bias=False)
    options = Options().replace(optimizer="muon", momentum=0.0, muon_normalize=True)
    optimizer = make_optimizer(options, model.named_parameters())
    with torch.no_grad():
        model.weight.mul_(100.0)
    optimizer.step([torch.zeros_like(model.weight)], 0.1, 0)
    assert model.weight.norm().item() == pytest.approx(8**0.5)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "rmsprop", "adam", "adamw", "lars", "muon"])
@pytest.mark.parametrize("precision", ["32.32", "16.32", "16.16"])
def test_every_step_counts_as_a_change_of_every_weight(optimizer: str, precision: str) -> None:
    """Layers keep their weight rounded to half until it changes: a rule that changes it unseen would train on old ones."""
    options = Options.from_mapping({"optimizer": optimizer, "precision": precision})
    dtype = torch.float16 if precision == "16.16" else torch.float32
    parameters = {
        name: torch.nn.Parameter(torch.ones(4, 2, 3, 3, dtype=dtype)) for name in ("one.weight", "two.weight")
    }
    made = make_optimizer(options, parameters.items())
    for update in range(3):
        before = [parameter._version for parameter in parameters.values()]
        made.step([torch.ones_like(parameter) for parameter in parameters.values()], 0.1, update)
        assert all(parameter._version > old for parameter, old in zip(parameters.values(), before, strict=True))


def by_hand_lamb(weights: torch.Tensor, gradients: list[torch.Tensor], decay: float, rate: float) -> torch.Tensor:
    """LAMB written out in float64."""
    w = weights.double().clone()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t, g in enumerate((one.double() for one in gradients), 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        r = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-6) + decay * w
        ratio = (w.norm() / r.norm()).item() if decay and w.norm() > 0 and r.norm() > 0 else 1.0
        w = w - rate * ratio * r
    return w


@pytest.mark.parametrize("decay", [0.0, 0.02])
def test_lamb_is_its_formula(decay: float) -> None:
    torch.manual_seed(0)
    weight, zero = torch.randn(5, 3), torch.zeros(4)
    gradients = [[torch.randn(5, 3), torch.randn(4)] for _ in range(4)]
    options = Options.from_mapping({"optimizer": "lamb", "weight_decay": decay})
    own = [weight.clone().requires_grad_(), zero.clone().requires_grad_()]
    optimizer = make_optimizer(options, [("a.weight", own[0]), ("b.weight", own[1])])
    for update, pair in enumerate(gradients):
        optimizer.step([one.clone() for one in pair], 0.05, update)
    for number, start in enumerate((weight, zero)):
        expected = by_hand_lamb(start, [pair[number] for pair in gradients], decay, 0.05)
        torch.testing.assert_close(own[number].detach(), expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("NAdam", ["betas=0.8,0.95"]), ("Adagrad", []), ("AdamW", ["amsgrad=true"]), ("SGD", ["momentum=0.9"])],
)
def test_a_foreign_class_steps_as_by_itself_and_resumes(name: str, arguments: list[str]) -> None:
    torch.manual_seed(0)
    start = [torch.randn(4, 3), torch.randn(3)]
    gradients = [[torch.randn(4, 3), torch.randn(3)] for _ in range(4)]
    options = Options.from_mapping(
        {
            "optimizer": f"torch.optim:{name}",
            "optimizer_arguments": arguments,
            "weight_decay": 0.01,
            "decay_exclude": ["1d"],
        }
    )

    def ours() -> tuple[list[torch.Tensor], Optimizer]:
        own = [value.clone().requires_grad_() for value in start]
        return own, make_optimizer(options, [("a.weight", own[0]), ("a.bias", own[1])])

    own, optimizer = ours()
    theirs = [value.clone().requires_grad_() for value in start]
    given = {"betas": (0.8, 0.95)} if name == "NAdam" else {"amsgrad": True} if name == "AdamW" else {}
    given |= {"momentum": 0.9} if name == "SGD" else {}
    groups = [{"params": [theirs[0]], "weight_decay": 0.01}, {"params": [theirs[1]], "weight_decay": 0.0}]
    reference = getattr(torch.optim, name)(groups, lr=0.1, foreach=False, **given)
    other, halfway = ours()
    for update, pair in enumerate(gradients):
        if update == 2:
            for target, value in zip(other, own, strict=True):
                target.data.copy_(value.data)
            halfway.load_state_dict({key: value.clone() for key, value in optimizer.state_dict().items()})
        for parameter, gradient in zip(theirs, pair, strict=True):
            parameter.grad = gradient.clone()
        reference.step()
        optimizer.step([one.clone() for one in pair], 0.1, update)
        if update >= 2:
            halfway.step([one.clone() for one in pair], 0.1, update)
    for mine, expected, resumed in zip(own, theirs, other, strict=True):
        assert torch.equal(mine, expected)
        assert torch.equal(resumed, mine)


def test_the_state_of_a_foreign_class_is_looked_through_once() -> None:
    """Not once for each parameter: thousands of them have thousands of states."""

    class Counted(dict[str, torch.Tensor]):
        looks = 0

        def items(self):  # type: ignore[no-untyped-def]
            self.looks += 1
            return super().items()

    options = Options.from_mapping({"optimizer": "torch.optim:NAdam"})
    optimizer = make_optimizer(options, [(f"w{n}", torch.zeros(2, requires_grad=True)) for n in range(20)])
    optimizer.step([torch.ones(2)] * 20, 0.1, 0)
    state = Counted(optimizer.state_dict())
    optimizer.load_state_dict(state)
    assert state.looks <= 2


def test_what_is_no_optimiser_is_refused() -> None:
    parameter = torch.zeros(2, requires_grad=True)

    def make(name: str, **more: object) -> Optimizer:
        return make_optimizer(Options.from_mapping({"optimizer": name, **more}), [("w", parameter)])

    for name, part in (("torch.optim:Nadim", "no class"), ("evil.py:Sgd", "not imported unasked")):
        with pytest.raises(UserError, match=part):
            make(name)
    with pytest.raises(UserError, match="did you mean 'adam"):
        Options.from_mapping({"optimizer": "adamm"}).check()
    with pytest.raises(UserError, match="optimizer-arguments"):
        make("torch.optim:Adam", optimizer_arguments=["rho=1"])
    with pytest.raises(UserError, match="closure"):
        make("torch.optim:LBFGS").step([torch.zeros(2)], 0.1, 0)
    with pytest.raises(UserError, match="float32"):
        make("torch.optim:Adam", precision="16.16")


def test_a_foreign_class_gets_the_options_that_it_takes() -> None:
    def arguments(name: str, **more: object) -> dict[str, object]:
        options = Options.from_mapping({"optimizer": f"torch.optim:{name}", **more})
        ((theirs, _),) = make_optimizer(options, [("w", torch.zeros(2, requires_grad=True))])._theirs.values()  # type: ignore[attr-defined]
        return dict(theirs.defaults)

    assert arguments("SGD")["momentum"] == 0.9
    assert arguments("SGD", optimizer_arguments=["momentum=0.5"])["momentum"] == 0.5
    changed = arguments("SGD", momentum=0.8, nesterov=True)
    assert (changed["momentum"], changed["nesterov"]) == (0.8, True)
    adam = arguments("Adam", beta1=0.8, beta2=0.95, optimizer_epsilon=1e-5)
    assert (adam["betas"], adam["eps"]) == ((0.8, 0.95), 1e-5)
    for name, more in (
        ("Adam", {"momentum": 0.8}), ("Adam", {"nesterov": True}), ("SGD", {"lars_eta": 0.1}), ("SGD", {"beta1": 0.8}),
    ):  # fmt: skip
        with pytest.raises(UserError, match="no such argument"):
            arguments(name, **more)
    with pytest.raises(UserError, match="already has momentum"):
        arguments("SGD", momentum=0.8, optimizer_arguments=["momentum=0.5"])


@pytest.mark.parametrize("shape", [(5, 3, 3, 3), (10, 7, 3, 3), (6, 144, 1, 1), (240, 10, 1, 1), (16, 3, 3, 3)])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_step_of_muon_does_not_depend_on_the_filters_beside(
    shape: tuple[int, ...], threads: int, nesterov: bool
) -> None:
    """A worker of a pipeline holds some filters of a shape, a worker alone all of them."""
    torch.manual_seed(0)
    filters = [torch.randn(shape) for _ in range(5)]

    def stepped(gradients: list[Tensor]) -> list[Tensor]:
        weights = [torch.zeros(shape) for _ in gradients]
        state = {"momentum": [torch.zeros(shape) for _ in gradients]}
        Muon(0.9, nesterov).update(weights, [one.clone() for one in gradients], state, rate=0.1, l2=0.0, step=1)
        return weights

    with using_threads(threads):
        together = stepped(filters)
        for cut in range(1, len(filters)):
            apart = stepped(filters[:cut]) + stepped(filters[cut:])
            assert all(torch.equal(one, other) for one, other in zip(together, apart, strict=True)), cut
