"""Average precision, thresholds and F1 of several labels, against brute force and scikit-learn."""

import math
from typing import Any

import pytest
import torch

from conveyor.evaluate.multi_label import measured


def drawn(seed: int, images: int = 40, classes: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits with many ties; the last class has no image."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(images, classes, generator=generator) < 0.3).long()
    labels[:, -1] = 0
    logits = torch.randn(images, classes, generator=generator) + 1.5 * labels
    return (logits * 2).round() / 2 if seed % 2 else logits, labels


def brute_force(scores: list[float], labels: list[int]) -> tuple[float, float]:
    """(average precision, largest F1) by trying every threshold: sum over them of precision times the step of recall."""
    precision_sum, recall_before, best = 0.0, 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        named = [label for score, label in zip(scores, labels, strict=True) if score >= threshold]
        recall, precision = sum(named) / sum(labels), sum(named) / len(named)
        precision_sum += (recall - recall_before) * precision
        recall_before = recall
        best = max(best, 2 * sum(named) / (len(named) + sum(labels)))
    return precision_sum, best


@pytest.mark.parametrize("seed", range(6))
def test_every_threshold_was_tried(seed: int) -> None:
    logits, labels = drawn(seed)
    found = measured(logits, labels)
    named = logits.double().sigmoid() >= torch.tensor(found.thresholds, dtype=torch.float64)
    for number in range(5):
        average, best = brute_force(logits[:, number].tolist(), labels[:, number].tolist())
        assert found.average_precision[number] == pytest.approx(average, abs=1e-12)
        images, answers, right = found.counts[:, number].tolist()
        assert (images, answers) == (labels[:, number].sum(), named[:, number].sum())
        assert right == (named[:, number] & (labels[:, number] == 1)).sum()
        assert 2 * right / (answers + images) == pytest.approx(best, abs=1e-12)
    assert (found.average_precision[5], found.thresholds[5]) == (None, 0.5)


@pytest.mark.parametrize("seed", range(4))
def test_the_figures_are_those_of_scikit_learn(seed: int) -> None:
    metrics: Any = pytest.importorskip("sklearn.metrics", reason="an independent implementation")
    logits, labels = drawn(seed, images=60)
    logits, labels = logits[:, :5], labels[:, :5]
    found = measured(logits, labels)
    named = logits.double().sigmoid() >= torch.tensor(found.thresholds, dtype=torch.float64)
    truth, answers = labels.numpy(), named.long().numpy()
    scores = found.scores()
    expected = metrics.average_precision_score(truth, logits.numpy(), average="macro")
    assert scores["map"] == pytest.approx(100 * expected, abs=1e-9)
    assert scores["f1_micro"] == pytest.approx(100 * metrics.f1_score(truth, answers, average="micro"), abs=1e-9)


def test_one_image_and_saturated_logits() -> None:
    found = measured(torch.tensor([[2000.0, -2000.0]]), torch.tensor([[1, 1]]))
    assert found.average_precision == (1.0, 1.0)
    assert all(math.isfinite(one) and 0 <= one <= 1 for one in found.thresholds)
    assert found.counts.tolist() == [[1, 1], [1, 1], [1, 1]]


def test_classes_looked_at_in_parts_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of all images and thousands of classes would be made a dozen times over."""
    logits, labels = drawn(3, images=50, classes=23)
    whole = measured(logits, labels)
    monkeypatch.setattr("conveyor.evaluate.multi_label._AT_ONCE", 50 * 4)
    parts = measured(logits, labels)
    assert (parts.thresholds, parts.average_precision) == (whole.thresholds, whole.average_precision)
    assert torch.equal(parts.counts, whole.counts)
