"""Calibration against the closed form, and against sums over batches."""

import math

import pytest
import torch

from conveyor.evaluate.calibration import BINS, confidence_bins, expected_calibration_error


def test_calibration_error_is_the_closed_form() -> None:
    # Two classes, logits (x, 0): confidence 1 / (1 + e^-x). Eight answers of 0.8, of which six are right; two of 0.6, none.
    logits = torch.tensor([[math.log(4), 0.0]] * 8 + [[math.log(1.5), 0.0]] * 2)
    labels = torch.tensor([0] * 6 + [1] * 4)
    found = expected_calibration_error(confidence_bins(logits, labels))
    assert found == pytest.approx((8 * (0.8 - 0.75) + 2 * 0.6) / 10, abs=1e-6)


def test_bins_of_batches_add_up_and_certainty_has_a_bin() -> None:
    logits, labels = torch.randn(64, 5, generator=torch.Generator().manual_seed(1)) * 3, torch.arange(64) % 5
    logits[0] = torch.tensor([100.0, 0, 0, 0, 0])
    whole = confidence_bins(logits, labels)
    parts = sum(confidence_bins(logits[i : i + 16], labels[i : i + 16]) for i in range(0, 64, 16))
    torch.testing.assert_close(whole, parts, rtol=1e-12, atol=0)
    assert whole.shape == (BINS, 3)
    assert whole[:, 0].sum() == 64
    assert whole[-1, 0] >= 1


def test_no_image_is_no_error() -> None:
    assert expected_calibration_error(torch.zeros(BINS, 3)) == 0
