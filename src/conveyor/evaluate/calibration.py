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


def expected_calibration_error(counts: Tensor) -> float:
    """sum over bins of (images in it / all images) |accuracy - mean confidence|, 0..1; `counts` from `counted`."""
    images, right, summed = counts.double().unbind(dim=1)
    return float((right - summed / UNIT).abs().sum() / images.sum().clamp(min=1))


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T > 0 for which softmax(logits / T) has the least cross entropy against `labels`, within 1/64 to 64.

    In b = 1 / T the mean of log sum exp(b z) - b z_label is convex; its slope, mean(E_p[z] - z_label), is bisected in
    float64. One number moves every confidence and no answer.
    """
    z = logits.double()
    own = z.gather(1, labels.unsqueeze(1)).mean()
    low, high = 1 / 64, 64.0
    for _ in range(60):
        b = (low * high) ** 0.5
        slope = ((b * z).softmax(dim=1) * z).sum(dim=1).mean() - own
        low, high = (low, b) if slope > 0 else (b, high)
    return 1 / (low * high) ** 0.5


def abstain_threshold(logits: Tensor, labels: Tensor, accuracy: float) -> tuple[float, float] | None:
    """(least confidence, share of the images that have it) at which the answers given are right `accuracy` of the time.

    The threshold that answers most images; None where not even the surest answers are that good.
    """
    confidence, answer = logits.double().softmax(dim=1).max(dim=1)
    ordered, order = confidence.sort(descending=True, stable=True)
    hits = (answer == labels).double()[order].cumsum(0)
    count = torch.arange(1, len(ordered) + 1, dtype=torch.float64)
    # Equal confidences are answered together: only the last of them is a place to stop.
    last = torch.cat([ordered[:-1] > ordered[1:], torch.ones(1, dtype=torch.bool)])
    good = (last & (hits >= accuracy * count)).nonzero().flatten()
    if not len(good):
        return None
    place = int(good[-1])
    return float(ordered[place]), (place + 1) / len(ordered)
