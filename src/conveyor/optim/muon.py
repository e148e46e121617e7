"""Muon: momentum whose step is made orthogonal, for convolution filters seen as matrices."""

import dataclasses
from collections import defaultdict

import torch
from torch import Tensor

from conveyor.numerics import foreach
from conveyor.optim.rules import Moments, TensorLists

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the odd polynomial a x + b x^3 + c x^5; steep at 0, and it keeps singular values near 1 (about 0.7 to 1.2)."""
_ITERATIONS = 5


def is_filter(parameter: Tensor) -> bool:
    """Whether Muon takes this parameter: a convolution filter that mixes channels (a depthwise one does not)."""
    return parameter.dim() >= 3 and parameter.shape[1] > 1


def orthogonalize(matrices: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly: U V^T of the singular value decomposition; [..., m, n].

    Newton-Schulz iteration X <- a X + (b A + c A^2) X with A = X X^T, started from X / |X|. It works on the short side
    and in bfloat16 on CUDA, where its error is far below what the iteration leaves.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    if x.is_cuda:
        x = x.bfloat16()
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a, alpha=1.0)
    x = x.to(matrices.dtype)
    return x.mT if tall else x


def _orthogonalized(matrices: list[Tensor]) -> Tensor:
    """`orthogonalize` of matrices of one shape, [count, m, n].

    On a CPU one by one: the library's product of a stack divides a single matrix among threads and several by matrix, and
    adds up in another order where a matrix does not begin at a multiple of a vector. How many filters of a shape stand
    together follows from the stages that a worker holds, and must not change a bit.
    """
    if matrices[0].is_cuda:
        return orthogonalize(torch.stack(matrices))
    return torch.cat([orthogonalize(matrix.unsqueeze(0)) for matrix in matrices])


@dataclasses.dataclass(frozen=True)
class Muon(Moments):
    """m = mu m + g; w -= L sqrt(max(1, rows / columns)) orthogonal(m), or of g + mu m in Nesterov's form.

    A filter [out, in, ...] is the matrix [out, in x ...]. On a GPU filters of one shape go through the iteration together.

    `normalize` first scales each filter to the norm sqrt(rows), that of an orthogonal step: a norm behind
    the filter cancels its length, so the rate is then the relative size of a step.
    """

    momentum: float
    nesterov: bool = False
    normalize: bool = False

    def update(
        self, weights: list[Tensor], gradients: list[Tensor], state: TensorLists, *, rate: float, l2: float, step: int
    ) -> None:
        moments = self.faded(weights, gradients, state, l2)
        foreach.add_(moments, gradients)
        if self.nesterov:
            foreach.add_(gradients, moments, alpha=self.momentum)
        directions = gradients if self.nesterov else moments
        by_shape: dict[torch.Size, list[int]] = defaultdict(list)
        for position, weight in enumerate(weights):
            by_shape[weight.shape].append(position)
        if self.normalize:
            lengths = foreach.norm(weights)
            foreach.clamp_min_(lengths, 1e-12)
            foreach.mul_(weights, [len(weight) ** 0.5 for weight in weights])
            foreach.div_(weights, lengths)
        for shape, positions in by_shape.items():
            matrices = _orthogonalized([directions[position].flatten(1) for position in positions])
            scale = max(1.0, matrices.shape[-2] / matrices.shape[-1]) ** 0.5
            for position, matrix in zip(positions, matrices, strict=True):
                weights[position].add_(matrix.reshape(shape), alpha=-rate * scale)
