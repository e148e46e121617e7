"""Weights and state in half precision: masters, rounding, stochastic rounding."""

from typing import Any

import pytest
import torch
from torch import nn

from conveyor.optim.optimizer import Optimizer, make_optimizer
from conveyor.options import Options


def half_weight(value: float, dtype: torch.dtype = torch.float16, size: int = 1) -> nn.Parameter:
    return nn.Parameter(torch.full((size, 1), value, dtype=dtype))


def optimizer_of(weight: nn.Parameter, **chosen: Any) -> Optimizer:
    return make_optimizer(Options().replace(**({"optimizer": "sgd"} | chosen)), [("weight", weight)])


def constant_updates(weight: nn.Parameter, count: int, gradient: float, rate: float, **chosen: Any) -> float:
    optimizer = optimizer_of(weight, **chosen)
    for update in range(count):
        optimizer.step([torch.full_like(weight, gradient)], rate, update)
    return weight.double().mean().item()


def test_weight_of_1000_ignores_small_updates_in_half() -> None:
    """250 updates of 0.001: the spacing of float16 there is 0.5."""
    assert constant_updates(half_weight(1000), 250, 0.1, 0.01, precision="16.16") == 1000


def test_weight_of_1000_moves_with_stochastic_rounding() -> None:
    """On average by 250 x 0.001; 4096 weights leave a standard error of about 0.0055."""
    mean = constant_updates(
        half_weight(1000, size=4096), 250, 0.1, 0.01, precision="16.16", stochastic_rounding="weights"
    )
    assert mean == pytest.approx(999.75, abs=0.03)


def test_update_is_visible_with_float32_masters_only() -> None:
    """Weight 1000, one step of 0.1: unchanged in 16.16, changed in 16.32."""
    assert constant_updates(half_weight(1000), 1, 0.1, 1.0, precision="16.16") == 1000
    weight = nn.Parameter(torch.full((1, 1), 1000.0))
    assert constant_updates(weight, 1, 0.1, 1.0, precision="16.32") == pytest.approx(999.9, abs=1e-4)


def test_half_parameters_get_float32_masters() -> None:
    weight = half_weight(1000)
    optimizer = optimizer_of(weight, precision="16.32")
    for update in range(300):
        optimizer.step([torch.full_like(weight, 0.1)], 0.01, update)
    state = optimizer.state_dict()
    assert state["master/weight"].item() == pytest.approx(999.7, abs=0.02)
    assert weight.item() == 999.5
    assert weight.dtype == torch.float16
    fresh = half_weight(0.0)
    again = optimizer_of(fresh, precision="16.32")
    again.load_state_dict(state)
    assert fresh.item() == 999.5


def test_state_is_half_in_16_16() -> None:
    weight = half_weight(1.0)
    optimizer = optimizer_of(weight, precision="16.16", optimizer="adam")
    optimizer.step([torch.full_like(weight, 0.1)], 0.01, 0)
    state = optimizer.state_dict()
    assert {value.dtype for name, value in state.items() if "/" in name} == {torch.float16}


def test_tiny_scaled_gradients_survive() -> None:
    """A gradient of 2^-26 is no half number; scaled by 1024 it is, and it is unscaled in float32."""
    weight = half_weight(0.0)
    optimizer_of(weight, precision="16.16").step(
        [torch.full_like(weight, 2.0**-16)], 1024.0, 0, gradient_factor=2.0**-10
    )
    assert weight.item() == -(2.0**-16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_stochastic_rounding_is_keyed_by_update_and_name(dtype: torch.dtype) -> None:
    def run(name: str, update: int, seed: int = 1, others: tuple[str, ...] = ()) -> torch.Tensor:
        parameters = {key: half_weight(1.0, dtype, size=1024) for key in (*others, name)}
        options = Options().replace(
            optimizer="sgd",
            precision="16.16",
            half_type=str(dtype).removeprefix("torch."),
            stochastic_rounding="weights",
            seed=seed,
        )
        optimizer = make_optimizer(options, parameters.items())
        optimizer.step([torch.full_like(value, 0.1) for value in parameters.values()], 0.001, update)
        return parameters[name].detach()

    reference = run("a.weight", 3)
    assert len(reference.unique()) == 2
    assert torch.equal(reference, run("a.weight", 3))
    assert torch.equal(reference, run("a.weight", 3, others=("b.weight", "c.weight")))
    for other in (run("a.weight", 4), run("b.weight", 3), run("a.weight", 3, seed=2)):
        assert not torch.equal(reference, other)


def test_saturation_keeps_weights_finite() -> None:
    assert constant_updates(half_weight(65504), 1, -100.0, 1.0, precision="16.16") == float("inf")
    assert constant_updates(half_weight(65504), 1, -100.0, 1.0, precision="16.16", saturate=True) == 65504
