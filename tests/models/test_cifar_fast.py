"""The network of the fast CIFAR-10 configuration, and the configuration itself."""

import pytest
import torch

from conveyor import models
from conveyor.data.batch import Target
from conveyor.models.cifar_fast import patch_covariance, whitening_filters
from conveyor.optim.optimizer import make_optimizer
from conveyor.options import Options
from conveyor.options.file import shipped
from conveyor.spec import resolve
from conveyor.training.loss import Loss


def configured() -> Options:
    return Options.from_mapping(shipped().resolve("cifar10_fast"))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_whitening_filters_whiten(channels: int) -> None:
    """F C F^T is diagonal, near 1 where the variance is far above the epsilon; every filter has its negative."""
    covariance = patch_covariance(channels)
    half = whitening_filters(channels)[: 4 * channels].reshape(4 * channels, -1).double()
    whitened = half @ covariance @ half.mT
    values = torch.linalg.eigvalsh(covariance)
    assert values.min() > 0
    assert torch.allclose(whitened, torch.diag(values / (values + 5e-4)), atol=1e-4)
    both = whitening_filters(channels)
    assert torch.equal(both[4 * channels :], -both[: 4 * channels])


def test_what_learns_and_what_does_not() -> None:
    model = models.build("cifar_fast", num_classes=10)
    fixed = {name for name, value in model.named_parameters() if not value.requires_grad}
    assert fixed == {"whiten.weight"} | {f"groups.{g}.norm{n}.weight" for g in range(3) for n in (1, 2)}
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    identity = model.get_parameter("groups.1.conv1.weight")[:64, :, 1, 1]
    assert torch.equal(identity, torch.eye(64))


def test_the_configuration_resolves() -> None:
    spec = resolve(configured())
    assert (spec.subject.name, spec.topology.global_batch, spec.length.updates_total) == ("cifar_fast", 2000, 225)
    assert spec.schedule.rate(0) == pytest.approx(0.24)
    assert spec.schedule.rate(90) == pytest.approx(0.24 * (1 - 90 / 225))
    assert spec.options.events.validation_views == "mirror-shift"


def test_updates_lower_the_loss() -> None:
    """Ten small updates with the configuration's own optimiser, on images whose class is their brightness."""
    options = configured()
    torch.manual_seed(0)
    model = models.build("cifar_fast", num_classes=10, widths=(16, 32, 32)).train()
    optimizer = make_optimizer(options, model.named_parameters())
    labels = torch.arange(64) % 10
    images = 0.3 * torch.randn(64, 3, 16, 16) + labels.view(-1, 1, 1, 1) / 5 - 1
    criterion = Loss.from_options(options, 10)
    losses = []
    for update in range(10):
        loss = criterion(model(images), Target(labels))
        losses.append(loss.item())
        model.zero_grad()
        loss.backward()
        gradients = [model.get_parameter(name).grad for name in optimizer.names]
        optimizer.step(gradients, 0.24 * (1 - update / 10), update)
    assert losses[-1] < losses[0] - 0.2
    for name in ("groups.0.conv1.weight", "groups.2.conv2.weight"):
        weight = model.get_parameter(name)
        assert weight.norm().item() / len(weight) ** 0.5 == pytest.approx(1.0, abs=0.1)
