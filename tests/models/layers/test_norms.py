"""Norm layers against torch's own and against formulas written out here."""

import copy

import pytest
import torch
from torch import nn

from conveyor import models
from conveyor.errors import UserError
from conveyor.models.layers import norms
from conveyor.models.layers.norms import BatchNorm, GroupNorm, NormChoice
from conveyor.models.layers.proxy_norm import ProxyNormActivation
from conveyor.numerics import context


def test_one_micro_batch_per_update_equals_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = BatchNorm(6, momentum=0.3), nn.BatchNorm2d(6, momentum=0.3)
    for _ in range(3):
        x = torch.randn(4, 6, 5, 5) * 2 + 1
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        ya, yb = ours(a), theirs(b)
        assert torch.equal(ya, yb)
        (ya**2).sum().backward()
        (yb**2).sum().backward()
        assert torch.equal(a.grad, b.grad)
        norms.commit(ours)
    assert set(ours.state_dict()) == set(theirs.state_dict())
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], value)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x))


def test_statistics_are_the_mean_over_micro_batches_and_wait_for_commit() -> None:
    torch.manual_seed(0)
    norm, x = BatchNorm(3, momentum=0.25), torch.randn(8, 3, 4, 4) + 2
    parts = x.split(2)
    for part in parts:
        norm(part)
    assert norm.running_mean.eq(0).all()
    assert norm.pending_count.item() == 4
    mean = torch.stack([part.mean((0, 2, 3)) for part in parts]).mean(0)
    var = torch.stack([part.var((0, 2, 3)) for part in parts]).mean(0)
    norms.commit(norm)
    torch.testing.assert_close(norm.running_mean, 0.25 * mean)
    torch.testing.assert_close(norm.running_var, 0.75 + 0.25 * var)
    assert norm.num_batches_tracked.item() == 4
    assert all(tensor.eq(0).all() for tensor in norms.pending(norm))
    before = copy.deepcopy(norm.state_dict())
    norms.commit(norm)
    assert all(torch.equal(value, before[key]) for key, value in norm.state_dict().items())


def test_sums_of_two_workers_commit_like_one() -> None:
    torch.manual_seed(0)
    whole, parts = BatchNorm(3), [BatchNorm(3), BatchNorm(3)]
    batches = torch.randn(3, 2, 3, 4, 4)
    for index, batch in enumerate(batches):
        whole(batch)
        parts[0 if index == 0 else 1](batch)
    for mine, yours in zip(norms.pending(parts[0]), norms.pending(parts[1]), strict=True):
        mine += yours
    norms.commit(whole)
    norms.commit(parts[0])
    for key, value in whole.state_dict().items():
        torch.testing.assert_close(parts[0].state_dict()[key], value)


def test_frozen_and_discarded_statistics_leave_no_trace() -> None:
    norm, x = BatchNorm(3), torch.randn(2, 3, 4, 4)
    with context.frozen_statistics():
        norm(x)
    assert norm.pending_count.item() == 0
    norm(x)
    assert norm.pending_count.item() == 1
    norms.discard(norm)
    assert all(tensor.eq(0).all() for tensor in norms.pending(norm))


def test_a_single_value_per_channel_says_what_to_do() -> None:
    with pytest.raises(UserError, match="--norm group"):
        BatchNorm(3)(torch.randn(1, 3, 1, 1))


@pytest.mark.parametrize("channels_last", [False, True])
def test_stable_group_norm_keeps_digits_beside_a_large_mean(channels_last: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 16, 16)
    exact = nn.functional.group_norm((x.double() + 3000).float().double(), 2)
    shifted = (x.double() + 3000).float()
    if channels_last:
        shifted = shifted.contiguous(memory_format=torch.channels_last)
    y = GroupNorm(2, 8, stable=True)(shifted)
    assert (y - exact).abs().max() < 2e-3
    assert y.is_contiguous(memory_format=torch.channels_last) == channels_last


def test_stable_equals_plain_where_nothing_is_lost() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8, 6, 6)
    for stable, plain in (
        (GroupNorm(4, 8, stable=True), GroupNorm(4, 8)),
        (BatchNorm(8, stable=True), BatchNorm(8)),
    ):
        torch.testing.assert_close(stable(x), plain(x))
    half = x.half()
    y = BatchNorm(8, stable=True)(half)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y.float(), BatchNorm(8)(half.float()), atol=2e-3, rtol=1e-3)


def test_number_of_groups_is_capped_and_divides() -> None:
    assert NormChoice(kind="group", groups=32).num_groups(16) == 16
    assert NormChoice(kind="group", groups=32).num_groups(64) == 32
    assert NormChoice(kind="group", groups=32).num_groups(40) == 20
    assert NormChoice(kind="group", group_channels=8).num_groups(64) == 8
    assert NormChoice(kind="group", group_channels=8).num_groups(4) == 1


@pytest.mark.parametrize("name", ["cifar_resnet8", "cifar_resnext11", "efficientnet_cifar", "mobilenet_v3_small"])
@pytest.mark.parametrize("norm", ["batch", "group", "proxy", "none"])
def test_every_norm_trains_every_family(name: str, norm: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, num_classes=5, norm=norm, stable_norm=norm == "group")
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    batch_norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    assert bool(batch_norms) == (norm == "batch")
    biases = [module.bias is not None for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert all(biases) if norm == "none" else not all(biases)


def test_norm_options_reach_the_layers() -> None:
    model = models.build("efficientnet_b0", norm_epsilon=0.02, norm_momentum=0.5)
    assert {(m.eps, m.momentum) for m in model.modules() if isinstance(m, BatchNorm)} == {(0.02, 0.5)}
    defaults = models.build("efficientnet_b0")
    assert {(m.eps, m.momentum) for m in defaults.modules() if isinstance(m, BatchNorm)} == {(1e-3, 0.01)}
    with pytest.raises(UserError, match="twice"):
        models.build("resnet18", norm="group", norm_groups=4, norm_group_channels=8)
    with pytest.raises(UserError, match="no norm"):
        models.build("resnet18", norm="instance")


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.SiLU()])
def test_proxy_norm_against_its_formula(activation: nn.Module) -> None:
    torch.manual_seed(0)
    layer = ProxyNormActivation(3, activation, epsilon=0.03)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(3) * 0.5)
    y = torch.randn(2, 3, 4, 4)
    out = layer(y)
    grid = [
        torch.distributions.Normal(0, 1).icdf(torch.tensor((i + 0.5) / 200, dtype=torch.float64)) for i in range(200)
    ]
    for channel in range(3):
        gamma, beta = layer.weight[channel].double(), layer.bias[channel].double()
        shift, scale = layer.proxy_shift[channel].double(), layer.proxy_scale[channel].double()
        proxy = torch.stack([activation(gamma * (shift + (1 + scale) * z) + beta) for z in grid])
        mean = proxy.sum() / 200
        deviation = torch.sqrt(((proxy - mean) ** 2).sum() / 200 + 0.03)
        expected = (activation(gamma * y[:, channel].double() + beta) - mean) / deviation
        torch.testing.assert_close(out[:, channel].double(), expected, atol=1e-5, rtol=1e-5)


def test_proxy_norm_brings_a_normal_input_near_zero_mean_and_unit_variance() -> None:
    torch.manual_seed(0)
    layer = ProxyNormActivation(4, nn.ReLU(), epsilon=1e-4)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([-0.5, 0.0, 0.5, 1.0]))
    out = layer(torch.randn(64, 4, 16, 16))
    assert out.mean((0, 2, 3)).abs().max() < 0.05
    assert (out.std((0, 2, 3)) - 1).abs().max() < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", [BatchNorm(24), GroupNorm(4, 24), GroupNorm(4, 24, stable=True)])
def test_the_name_of_the_format_of_one_pixel_does_not_matter(norm: torch.nn.Module, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x, seed = (torch.randn(24, 24, generator=generator).to(dtype) for _ in range(2))
    found = []
    for ours in ((24, 1, 1, 1), (24, 1, 24, 24)):
        for theirs in ((24, 1, 1, 1), (24, 1, 24, 24)):
            given = x.clone().as_strided((24, 24, 1, 1), ours).requires_grad_()
            norm.zero_grad()
            y = norm(given)
            y.backward(seed.clone().as_strided((24, 24, 1, 1), theirs))
            gradients = [one.grad for one in (given, *norm.parameters())]
            found.append([y.detach(), *(one for one in gradients if one is not None)])
    for other in found[1:]:
        for one, first in zip(other, found[0], strict=True):
            assert torch.equal(one, first)
