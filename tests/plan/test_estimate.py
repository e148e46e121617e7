"""Costs of real models: bytes kept for the backward pass exactly, times in the right proportions."""

import copy

import pytest
import torch
from torch import nn

from conveyor.models.registry import build, build_from
from conveyor.models.units import trace
from conveyor.options.model import ModelOptions
from conveyor.plan import measure, pieces
from conveyor.plan.costs import Linear, Model, UnitCost
from conveyor.plan.estimate import estimated, meta_model
from conveyor.plan.hardware import this_cpu


def really_saved(model: nn.Module, images: torch.Tensor) -> float:
    """Bytes of all tensors that autograd keeps in a real forward pass, without the parameters."""
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(images)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return float(sum(tensor.untyped_storage().nbytes() for at, tensor in kept.items() if at not in weights))


@pytest.mark.parametrize(("name", "size"), [("cifar_resnet8", 16), ("mobilenet-v3-small", 32), ("resnet14", 32)])
def test_activation_bytes_are_those_of_a_real_pass(name: str, size: int) -> None:
    options = ModelOptions(model=name)
    costs = estimated(meta_model(options, num_classes=10), size, 3, this_cpu(2, 1e11))
    real = build_from(options, num_classes=10)
    saved = really_saved(real, torch.randn(8, 3, size, size))
    predicted = costs.stage(0, len(costs), 8).saved_bytes
    assert predicted == pytest.approx(saved, rel=0.05)
    assert costs.weight_bytes == 4 * sum(parameter.numel() for parameter in real.parameters())


def test_blocks_and_boundaries() -> None:
    costs = estimated(meta_model(ModelOptions(model="cifar_resnet8"), num_classes=10), 16, 3, this_cpu(2, 1e11))
    assert costs.boundary(0) == 3 * 16 * 16 * 4
    assert costs.units[-1].boundary_bytes == 0
    names = [unit.block for unit in costs.units if unit.block]
    assert len(set(names)) == 3
    assert costs.stage(0, len(costs), 4, "stage").saved_bytes < costs.stage(0, len(costs), 4, "block").saved_bytes
    assert costs.stage(0, len(costs), 4, "block").saved_bytes < costs.stage(0, len(costs), 4).saved_bytes


def test_measured_times_add_up_to_the_whole_pass() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        options = ModelOptions(model="cifar_resnet8")
        real = build_from(options, num_classes=10)
        times = measure.measured(real, 16, 3, (2, 4), repeats=1).times
        meta = meta_model(options, num_classes=10)
        costs = estimated(meta, 16, 3, this_cpu(2, 1e11), times)
    finally:
        torch.set_num_threads(before)
    assert all(forward(4) >= 0 for forward, _ in times.values())
    assert len(times) == len(costs)
    forward, backward = costs.seconds(0, len(costs), 4)
    assert forward == pytest.approx(sum(times[name][0](4) for name in times))
    assert forward > 0
    assert backward > 0


def test_a_line_through_two_points_is_never_negative() -> None:
    assert measure.line(2, 1.0, 4, 3.0)(4) == pytest.approx(3.0)
    assert measure.line(2, 5.0, 4, 3.0).per_image >= 0
    assert measure.line(4, 3.0, 4, 3.0)(8) == pytest.approx(6.0)
    steep = measure.line(2, 0.1, 4, 3.0)
    assert steep.fixed >= 0
    assert steep(4) == pytest.approx(3.0)


def test_other_processes_can_be_kept_busy() -> None:
    options = ModelOptions(model="cifar_resnet8")
    arguments = {"name": "cifar_resnet8", "num_classes": 10, "in_channels": 3, "image_size": 8}
    with measure.others_busy(options, arguments, 8, 2, 1):
        assert measure.update_seconds_per_byte(1_000_000) > 0


@pytest.mark.parametrize("staged", [False, True])
def test_measured_times_cover_every_unit_and_recomputation_has_a_price(staged: bool) -> None:
    torch.manual_seed(0)
    model = measure.ready(build("cifar_resnet8", num_classes=10))
    names = {unit.name for unit in trace(copy.deepcopy(model).to("meta"), 16, 3)}
    found = measure.measured(model, 16, 3, (2, 4), staged=staged, repeats=1)
    assert set(found.times) == names
    assert sum(forward(4) for forward, _ in found.times.values()) > 0
    assert set(found.again) == {"block", "stage"}
    only = measure.measured(model, 16, 3, (2, 4), staged=staged, kinds=("none",), repeats=1)
    assert only.again == {}


@pytest.mark.parametrize("kind", ["none", "block", "stage"])
@pytest.mark.parametrize("staged", [False, True])
def test_what_is_timed_computes_what_the_model_does(kind: str, staged: bool) -> None:
    torch.manual_seed(0)
    model = measure.ready(build("cifar_resnet8", num_classes=10))
    images = torch.randn(2, 3, 16, 16)
    assert torch.allclose(measure.variant(model, kind, staged)(images), model(images), atol=1e-5)


def test_recomputation_costs_its_price_and_blocks_only_their_part() -> None:
    def unit(name: str, block: str | None) -> UnitCost:
        return UnitCost(name, Linear(0.0, 1.0), Linear(0.0, 2.0), block=block)

    model = Model([unit("stem", None), unit("a", "one"), unit("b", "one")], 0.0, again={"block": 1.5})
    assert model.seconds(0, 3, 2, "none") == (6.0, 12.0)
    assert model.seconds(0, 3, 2, "block") == (6.0, 12.0 + 1.5 * 4.0)
    assert model.seconds(0, 3, 2, "stage") == (6.0, 12.0 + 6.0)


def test_the_whole_pass_is_shared_out_by_pieces_and_inside_them_by_units() -> None:
    units = {"a": (1.0, 2.0), "b": (3.0, 2.0), "c": (5.0, 0.0)}
    found = pieces.shared_out(units, [(["a", "b"], 1.0, 3.0), (["c"], 1.0, 1.0)], (4.0, 8.0))
    assert found["a"] == pytest.approx((0.5, 3.0))
    assert found["b"] == pytest.approx((1.5, 3.0))
    assert found["c"] == pytest.approx((2.0, 0.0))


def test_pieces_begin_and_end_with_blocks() -> None:
    model = measure.ready(build("cifar_resnet8", num_classes=10))
    images = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    found = pieces.piece_seconds(model, images, repeats=1)
    assert [names[0] for names, *_ in found] == [
        "conv1",
        "layer1_0_conv1",
        "layer2_0_conv1",
        "layer3_0_conv1",
        "avgpool",
    ]
    assert all(forward > 0 for _, forward, _ in found)
    assert all(value is None for value in (parameter.grad for parameter in model.parameters()))
