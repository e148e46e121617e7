"""Cross entropy against its definition, and the count of hits."""

import pytest
import torch
from torch.nn import functional

from conveyor.data.batch import Target
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.training.loss import BAD, LOSS, SAMPLES, TOP1, TOP5, Loss, ranks, tally


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
