"""Calibration: whether answers that are given with a confidence of 90 % are right nine times in ten."""

import json
from pathlib import Path

import torch
from torch import Tensor

from conveyor.files import write_atomically

BINS = 15
UNIT = 1 << 30
"""Confidences are summed in whole numbers of 1 / UNIT: such a sum does not depend on the order of the images."""


def counted(confidence: Tensor, right: Tensor) -> Tensor:
    """int64 [BINS, 3] from the confidences [N] in 0..1 and whether each answer was right [N].

    Bin m is (m / BINS, (m + 1) / BINS]; its row: images, right answers, sum of the confidences in 1 / UNIT. Confidences
    that are not numbers count as 0.
    """
    confidence = confidence.double().nan_to_num(0.0)
    bins = (confidence * BINS).ceil().long().sub_(1).clamp_(0, BINS - 1)
    columns = (torch.ones_like(bins), right.long(), (confidence * UNIT).round().long())
    return torch.zeros(BINS, 3, dtype=torch.int64, device=bins.device).index_add_(0, bins, torch.stack(columns, 1))


def write_calibration(folder: Path, counts: Tensor, update: int) -> None:
    """`calibration.json` of the weights after `update`: for each bin [images, right answers, sum of confidences]."""
    rows = [[images, right, summed / UNIT] for images, right, summed in counts.tolist()]
    write_atomically(folder / "calibration.json", json.dumps({"update": update, "bins": rows}))
