"""Fused norms in whole networks: the same outputs, gradients and statistics as the separate modules."""

import copy

import pytest
import torch
from torch import nn

from conveyor.models import build
from conveyor.models.layers import norms
from conveyor.models.units import trace
from conveyor.numerics import norm_act
from conveyor.numerics.context import keyed

pytestmark = pytest.mark.skipif(not norm_act.available(), reason="no C compiler here: the separate operations are used")


def gradients(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The gradient of a loss as one long vector in double."""
    with keyed(0, 0, 0):
        loss = nn.functional.cross_entropy(model(images), torch.arange(len(images)))
    loss.backward()
    return torch.cat([parameter.grad.double().flatten() for parameter in model.parameters()])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name", ["resnet8", "resnet50", "resnext50", "efficientnet-b0", "mobilenet-v2", "mobilenet-v3-small"]
)
def test_as_exact_as_the_separate_modules(name: str) -> None:
    torch.manual_seed(0)
    plain = build(name, num_classes=10).to(memory_format=torch.channels_last).train()
    exact, fused = copy.deepcopy(plain).double(), copy.deepcopy(plain)
    assert norms.fuse(fused)
    images = torch.randn(4, 3, 64, 64).to(memory_format=torch.channels_last)
    truth = gradients(exact, images.double())
    usual, found = (float((gradients(model, images) - truth).norm() / truth.norm()) for model in (plain, fused))
    assert found < 3 * usual + 1e-6
    for one, other in zip(norms.pending(exact), norms.pending(fused), strict=True):
        torch.testing.assert_close(one.float(), other, rtol=1e-2, atol=1e-3)


def test_evaluation_and_stable_norms_are_not_fused() -> None:
    model = build("resnet8", num_classes=10, stable_norm=True)
    norms.fuse(model)
    assert not any(module.fused for module in model.modules() if isinstance(module, norms.BatchNorm))
    model = build("resnet8", num_classes=10).eval()
    images = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    before = model(images)
    norms.fuse(model)
    assert torch.equal(model(images), before)


def test_a_tracer_sees_the_modules() -> None:
    model = build("resnet8", num_classes=10)
    norms.fuse(model)
    names = [unit.path for unit in trace(model, 32, 3)]
    assert "layer1.0.bn1" in names
    assert "layer1.0.act2" in names
