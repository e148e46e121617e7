"""Values that are not finite are found and named."""

import pytest
import torch
from torch import Tensor, nn

from conveyor.models.layers import norms
from conveyor.numerics import finite

INF, NAN = float("inf"), float("nan")


class Root(nn.Module):
    """sqrt |x|: finite everywhere, with an infinite gradient at 0."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().sqrt()


class Flat(nn.Module):
    """The net on images of one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), norms.BatchNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)[:, :, None, None])[:, :, 0, 0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_is_finite(dtype: torch.dtype) -> None:
    assert finite.is_finite(torch.full((50,), torch.finfo(dtype).max, dtype=dtype))
    assert finite.is_finite(torch.empty(0, dtype=dtype))
    for bad in (INF, -INF, NAN):
        values = torch.ones(50, dtype=dtype)
        values[17] = bad
        assert not finite.is_finite(values)


def test_the_first_bad_output_is_named() -> None:
    model = Flat()
    with finite.watch(model):
        model(torch.randn(3, 4))
    with torch.no_grad():
        model.first.bias[2] = 3e38
        model.first.weight[2] = 3e38
    with (
        pytest.raises(
            finite.NotFiniteValueError, match=r"output of first is not finite \(0 NaN and 3 infinite of 12"
        ) as found,
        finite.watch(model),
    ):
        model(torch.full((3, 4), 9.0))
    assert found.value.layer == "first"
    model(torch.full((3, 4), 9.0))


def test_a_bad_gradient_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), Root())
    nn.init.zeros_(model[0].weight)
    with finite.watch(model, gradients=False):
        model(torch.ones(1, 2)).sum().backward()
    model[0].weight.grad = None
    with pytest.raises(finite.NotFiniteValueError) as found, finite.watch(model):
        model(torch.ones(1, 2)).sum().backward()
    assert (found.value.layer, found.value.what) == ("0", "gradient of the output")


def test_search_leaves_everything_as_it_was() -> None:
    model = Flat()
    model.first.weight.grad = torch.ones(4, 4)

    def run() -> None:
        (model(torch.tensor([[1.0, NAN, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0]])).sum()).backward()

    found = finite.first_bad_layer([model], run)
    assert found is not None
    assert found.phrase == "the output of first"
    assert torch.equal(model.first.weight.grad, torch.ones(4, 4))
    assert model.last.weight.grad is None
    assert all(not value.any() for value in norms.pending(model))
    assert not model.first._forward_hooks
    assert finite.first_bad_layer([model], lambda: model(torch.randn(2, 4)).sum().backward()) is None
    assert torch.equal(model.first.weight.grad, torch.ones(4, 4))


def test_bad_weights_are_named_first() -> None:
    model = Flat()
    with torch.no_grad():
        model.norm.weight[1] = NAN
    found = finite.first_bad_layer([model], lambda: None)
    assert found is not None
    assert found.phrase == "the weights norm.weight"
    assert finite.bad_weight([("steps", torch.tensor(3))]) is None


def test_the_cause_among_the_findings_of_many_workers() -> None:
    def value(layer: str, what: str, part: int) -> finite.Finding:
        return finite.Finding.value(finite.NotFiniteValueError(layer, what, torch.tensor([NAN])), part)

    early, late = value("a", finite.OUTPUT, 0), value("b", finite.OUTPUT, 3)
    first, last = value("a", "gradient of the output", 0), value("b", "gradient of the output", 3)
    assert min(late, early, first, last) == early
    assert min(first, last) is last
    assert min(early, finite.Finding.weights("c", 5)).phrase == "the weights c"


def test_parts_of_a_model_are_searched_together() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].weight.fill_(3e38)
    found = finite.first_bad_layer(
        [nn.Sequential(model[2]), nn.Sequential(model[1])],
        lambda: model(torch.full((1, 2), 1e3)).sum().backward(),
        (2, 1),
    )
    assert found is not None
    assert (found.rank, found.place, found.phrase) == (1, 1, "the output of 0")
