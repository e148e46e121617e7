"""Cross entropy against its definition, and the count of hits."""

import pytest
import torch
from torch.nn import functional

from conveyor.data.batch import Target
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.training.loss import BAD, LOSS, SAMPLES, TOP1, TOP5, Distillation, Loss, ranks, tally


def probabilities(target: Target, classes: int) -> torch.Tensor:
    """The target as rows of class probabilities, [B, classes]."""
    rows = torch.zeros(len(target.labels), classes)
    for labels, weight in target.mixed or [(target.labels, torch.ones(len(target.labels)))]:
        rows.scatter_add_(1, labels.unsqueeze(1), weight.unsqueeze(1))
    return rows


def by_definition(logits: torch.Tensor, target: Target, smoothing: float, form: str) -> torch.Tensor:
    """-sum q log p, with q written out."""
    classes = logits.shape[1]
    hard = probabilities(target, classes)
    if form == "uniform":
        q = (1 - smoothing) * hard + smoothing / classes
    else:
        q = hard * (1 - smoothing) + (1 - hard) * smoothing / (classes - 1)
    return -(q * functional.log_softmax(logits.float(), dim=1)).sum(dim=1).mean()


@pytest.mark.parametrize("form", ["uniform", "others"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_loss_is_its_definition(form: str, smoothing: float, mixed: bool) -> None:
    torch.manual_seed(0)
    logits, labels, share = torch.randn(6, 7), torch.randint(7, (6,)), torch.rand(6)
    terms = [(labels, share), (labels.roll(1), 1 - share)] if mixed else None
    target = Target(labels, terms)
    found = Loss(smoothing, form)(logits, target)
    torch.testing.assert_close(found, by_definition(logits, target, smoothing, form))


def test_half_logits_are_widened() -> None:
    logits, labels = torch.randn(4, 5), torch.tensor([0, 1, 2, 3])
    found = Loss()(logits.half(), Target(labels))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, functional.cross_entropy(logits.half().float(), labels))


def test_smoothing_over_the_others_needs_others() -> None:
    with pytest.raises(UserError, match="at least 2 classes"):
        Loss.from_options(Options().replace(label_smoothing=0.1, smoothing_form="others"), 1)


def test_ranks_count_the_classes_in_front() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0], [float("nan"), 0.0, 0.0], [0.0, float("nan"), 1.0]])
    labels = torch.tensor([2, 1, 0, 2])
    assert ranks(logits, labels).tolist() == [1, 1, 3, 0]


def test_ranks_agree_with_topk() -> None:
    logits, labels = torch.randn(50, 20), torch.randint(20, (50,))
    top5 = (logits.topk(5).indices == labels.unsqueeze(1)).any(dim=1)
    assert ((ranks(logits, labels) < 5) == top5).all()
    assert ((ranks(logits, labels) < 1) == (logits.argmax(1) == labels)).all()


def test_the_tally_holds_sums() -> None:
    logits, labels = torch.eye(6), torch.tensor([0, 1, 2, 3, 0, 1])
    found = tally(torch.tensor(2.5), logits, labels, slots=2)
    assert found[LOSS] == 15.0
    assert found[TOP1] == 4
    assert found[SAMPLES] == 6
    assert found[BAD] == 0
    assert found[TOP5] == 6
    bad = tally(torch.tensor(float("nan")), logits, labels, slots=2, accuracy=False)
    assert bad[BAD] == 2
    assert bad[TOP1] == 0


def made(mixed: bool) -> tuple[torch.Tensor, Target]:
    torch.manual_seed(1)
    logits, labels, share = 3 * torch.randn(6, 7), torch.randint(7, (6,)), torch.rand(6)
    return logits, Target(labels, [(labels, share), (labels.roll(1), 1 - share)] if mixed else None)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("threshold", [None, 0.2])
def test_binary_cross_entropy_is_torchs_of_the_dense_target(mixed: bool, threshold: float | None) -> None:
    logits, target = made(mixed)
    dense = 0.9 * probabilities(target, 7) + 0.1 / 7
    if threshold is not None:
        dense = (dense > threshold).float()
    expected = functional.binary_cross_entropy_with_logits(logits, dense)
    torch.testing.assert_close(Loss(0.1, kind="bce", threshold=threshold)(logits, target), expected)
    weights = torch.rand(7)
    expected = functional.binary_cross_entropy_with_logits(logits, dense, pos_weight=weights)
    torch.testing.assert_close(Loss(0.1, kind="bce", threshold=threshold, weights=weights)(logits, target), expected)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_the_focal_loss_is_its_formula(gamma: float) -> None:
    logits, target = made(False)
    p = logits.softmax(1)[torch.arange(6), target.labels]
    torch.testing.assert_close(Loss(gamma=gamma)(logits, target), -((1 - p) ** gamma * p.log()).mean())
    mixed_logits, mixed = made(True)
    q, all_p = probabilities(mixed, 7), mixed_logits.softmax(1)
    expected = -(q * (1 - all_p) ** gamma * all_p.log()).sum(1).mean()
    torch.testing.assert_close(Loss(gamma=gamma)(mixed_logits, mixed), expected)
    p, q = logits.sigmoid(), probabilities(target, 7)
    pt = torch.where(q == 1, p, 1 - p)  # Lin et al. 2017, without their alpha
    torch.testing.assert_close(Loss(kind="bce", gamma=gamma)(logits, target), -((1 - pt) ** gamma * pt.log()).mean())


def test_class_weights_scale_each_sample() -> None:
    logits, target = made(False)
    weights = torch.rand(7) + 0.5
    each = functional.cross_entropy(logits, target.labels, reduction="none")
    torch.testing.assert_close(Loss(weights=weights)(logits, target), (weights[target.labels] * each).mean())
    summed = functional.cross_entropy(logits, target.labels, weight=weights, reduction="sum", label_smoothing=0.1) / 6
    torch.testing.assert_close(Loss(0.1, weights=weights)(logits, target), summed)


@pytest.mark.parametrize("gamma", [0.25, 0.5, 1.0, 2.0])
def test_a_sure_and_right_answer_has_a_focal_gradient(gamma: float) -> None:
    """Where p rounds to 1, (1 - p)^(gamma - 1) is infinite for a gamma below 1."""
    logits = torch.tensor([[30.0, 0.0, 0.0], [200.0, -200.0, 0.0], [0.0, 1.0, 0.0]], requires_grad=True)
    loss = Loss(gamma=gamma)(logits, Target(torch.tensor([0, 0, 0])))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[:2].abs().max() < 1e-20
    assert gradient[2].isfinite().all()
    assert gradient[2, 0] < 0


def test_no_weights_and_no_gamma_are_the_plain_loss() -> None:
    for mixed in (False, True):
        logits, target = made(mixed)
        plain = Loss(0.1)(logits, target)
        torch.testing.assert_close(Loss(0.1, weights=torch.ones(7))(logits, target), plain)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_distillation_is_hintons(temperature: float) -> None:
    logits, target = made(False)
    teacher = torch.randn(6, 7)
    taught = Target(target.labels, None, teacher)
    soft = functional.kl_div(
        (logits / temperature).log_softmax(1), (teacher / temperature).softmax(1), reduction="batchmean"
    )
    expected = 0.7 * functional.cross_entropy(logits, target.labels) + 0.3 * temperature**2 * soft
    loss = Loss(distillation=Distillation("soft", temperature, 0.3))
    torch.testing.assert_close(loss(logits, taught), expected)
    assert torch.equal(loss(logits, target), Loss()(logits, target)), "without answers the labels alone count"
    hard = Loss(distillation=Distillation("hard", temperature, 1.0))(logits, taught)
    torch.testing.assert_close(hard, functional.cross_entropy(logits, teacher.argmax(1)))


def test_a_loss_of_minus_zero_counts_as_zero() -> None:
    """A sum over workers makes 0 of it, one worker alone would keep the sign."""
    assert not tally(torch.tensor(-0.0), torch.zeros(2, 3), torch.tensor([0, 1]))[0].signbit()
