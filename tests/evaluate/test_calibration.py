"""Calibration against closed forms."""

import math

import pytest
import torch

from conveyor.evaluate.calibration import (
    BINS,
    abstain_threshold,
    counted,
    expected_calibration_error,
    fit_temperature,
)


def test_calibration_error_is_the_closed_form() -> None:
    """Eight answers with 0.8, of which six are right; two with 0.6, none of them."""
    confidence, right = torch.tensor([0.8] * 8 + [0.6] * 2), torch.tensor([True] * 6 + [False] * 4)
    found = expected_calibration_error(counted(confidence, right))
    assert found == pytest.approx((8 * (0.8 - 0.75) + 2 * 0.6) / 10, abs=1e-6)
    assert expected_calibration_error(torch.zeros(BINS, 3)) == 0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_that_made_the_labels_is_found(temperature: float) -> None:
    """Labels drawn from softmax(z), logits z * T: the fitted temperature is T."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(20000, 5, generator=generator, dtype=torch.float64) * 2
    labels = torch.multinomial(z.softmax(dim=1), 1, generator=generator).squeeze(1)
    found = fit_temperature(z * temperature, labels)
    assert found == pytest.approx(temperature, rel=0.03)
    around = [
        torch.nn.functional.cross_entropy(z * temperature / t, labels) for t in (found / 1.001, found, found * 1.001)
    ]
    assert around[1] <= min(around[0], around[2])


def test_all_right_or_all_wrong_keeps_the_temperature_finite() -> None:
    logits = torch.eye(4) * 3
    assert fit_temperature(logits, torch.arange(4)) == pytest.approx(1 / 64)
    assert fit_temperature(logits, torch.arange(4).roll(1)) == pytest.approx(64)


def test_the_threshold_answers_as_many_as_it_may() -> None:
    """Two classes, logits (x, 0): confidences 0.9 (right), 0.8 (right), 0.7 (wrong), 0.7 (right), 0.6 (wrong)."""
    confidences = (0.9, 0.8, 0.7, 0.7, 0.6)
    logits = torch.tensor([[math.log(p / (1 - p)), 0.0] for p in confidences], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 0, 1])
    assert abstain_threshold(logits, labels, 1.0) == (pytest.approx(0.8), 0.4)
    assert abstain_threshold(logits, labels, 0.75) == (pytest.approx(0.7), 0.8)
    assert abstain_threshold(logits, labels, 0.6) == (pytest.approx(0.6), 1.0)
    assert abstain_threshold(logits, 1 - labels.clamp(max=0), 0.5) is None
