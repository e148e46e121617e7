"""Histograms of a network's weights, for trackers to draw."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BUCKETS = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Histogram:
    """Number of values between neighbours of `edges`, from the least value to the greatest."""

    counts: npt.NDArray[np.int64]
    edges: npt.NDArray[np.float64]
    sum: float
    sum_of_squares: float


def histograms(weights: Mapping[str, Tensor]) -> dict[str, Histogram]:
    """Of each tensor by its name; counters are left out, and of the rest what is not finite."""
    return {
        name: _histogram(values)
        for name, tensor in weights.items()
        if tensor.is_floating_point() and (values := _finite(tensor)).size
    }


def _finite(tensor: Tensor) -> npt.NDArray[np.float64]:
    values = tensor.detach().flatten().to("cpu", torch.float64)
    return values[values.isfinite()].numpy()


def _histogram(values: npt.NDArray[np.float64]) -> Histogram:
    counts, edges = np.histogram(values, BUCKETS)
    return Histogram(counts.astype(np.int64), edges, float(values.sum()), float(np.square(values).sum()))
