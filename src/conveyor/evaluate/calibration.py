"""Whether a model is as sure as it is right: the expected calibration error, and the temperature that mends it."""

import torch
from torch import Tensor

BINS = 15


def confidence_bins(logits: Tensor, labels: Tensor) -> Tensor:
    """Images, summed confidence and hits in each of `BINS` equal steps of confidence, float64 [BINS, 3].

    Confidence is the largest softmax value of logits [N, C]; bin b holds b / BINS < confidence <= (b + 1) / BINS.
    Bins of batches add up, so a validation sums them like its other counts.
    """
    confidence, answer = logits.float().softmax(dim=1).double().max(dim=1)
    bins = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    values = torch.stack([torch.ones_like(confidence), confidence, (answer == labels).double()], dim=1)
    return values.new_zeros(BINS, 3).index_add_(0, bins, values)


def expected_calibration_error(bins: Tensor) -> float:
    """sum over bins of (images in it / all images) |accuracy - mean confidence|, 0..1; `bins` from `confidence_bins`."""
    images, confidence, hits = bins.double().unbind(dim=1)
    return float((hits - confidence).abs().sum() / images.sum().clamp(min=1))
