"""Calibration counts: right, and the same in every order."""

from pathlib import Path

import pytest
import torch

from conveyor.evaluate.calibration import BINS, UNIT, counted, write_calibration
from conveyor.report.inputs import read_run


def expected_error(confidence: torch.Tensor, right: torch.Tensor) -> float:
    """The formula, image by image."""
    error = 0.0
    for m in range(BINS):
        inside = (confidence > m / BINS) & (confidence <= (m + 1) / BINS)
        if inside.any():
            gap = right[inside].double().mean() - confidence[inside].double().mean()
            error += float(gap.abs()) * int(inside.sum()) / len(confidence)
    return error


def test_the_error_is_that_of_the_formula(tmp_path: Path) -> None:
    confidence = torch.rand(500, generator=torch.Generator().manual_seed(1)) * 0.9 + 0.1
    right = torch.rand(500, generator=torch.Generator().manual_seed(2)) < confidence**2
    write_calibration(tmp_path, counted(confidence, right), 7)
    (tmp_path / "options.yml").touch()
    found = read_run(tmp_path).calibration
    assert found is not None
    assert (found.update, found.images) == (7, 500)
    assert found.error == pytest.approx(expected_error(confidence, right), abs=1e-8)
    assert found.excess == pytest.approx(float(confidence.double().mean() - right.double().mean()), abs=1e-8)


def test_the_counts_do_not_depend_on_the_order() -> None:
    confidence = torch.rand(1000, generator=torch.Generator().manual_seed(3))
    right = confidence > 0.5
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(4))
    parts = [counted(confidence[some], right[some]) for some in order.split(170)]
    assert torch.equal(counted(confidence, right), torch.stack(parts).sum(0))


def test_ends_of_the_range_and_no_numbers() -> None:
    found = counted(
        torch.tensor([0.0, 1.0, 1 / BINS, float("nan")], dtype=torch.float64), torch.tensor([False, True, True, False])
    )
    assert found[0].tolist() == [3, 1, round(UNIT / BINS)]
    assert found[-1].tolist() == [1, 1, UNIT]
