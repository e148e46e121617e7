"""Rounding float32 to a 16-bit format: to nearest, or at random in proportion to the distance.

Stochastic rounding adds random bits below the last kept one and cuts, all on the bits of the float32::

    bfloat16  keeps the upper 16 bits, so 16 random bits are added to the lower 16
    float16   keeps 10 of 23 mantissa bits, so 13 random bits are added; below 2^-14 (subnormal halves, spacing 2^-24)
              the value is first moved up by 2^-14, where float32 has 13 bits below 2^-24 as well

The magnitude is what is cut, so both signs behave alike. A value that the format holds is never changed. Above the
largest half the upper neighbour is infinity (or, saturating, there is none). Infinity and NaN stay what they are.

The random bits are a function of a 64-bit key and the element's place in memory. On a CPU a C kernel does all in one
pass where there is a compiler; it and the PyTorch operations give the same bits (but for those inside a NaN).
"""

import torch
from torch import Tensor

from conveyor.numerics import keyed
from conveyor.numerics.native.build import library

_SUBNORMAL = 2.0**-14
_CUT_BITS = {torch.float16: 13, torch.bfloat16: 16}
_CHUNK = 1 << 17
"""Elements worked on at once: a few arrays of this size stay in the second-level cache. A multiple of 4."""


def round_nearest(values: Tensor, dtype: torch.dtype, *, saturate: bool = False) -> Tensor:
    """`values` in `dtype`, to nearest, ties to even; saturating clamps to the largest finite number."""
    if saturate and values.dtype != dtype:
        limit = torch.finfo(dtype).max
        values = values.clamp(-limit, limit)
    return values.to(dtype)


def stochastic_round(values: Tensor, dtype: torch.dtype, *, key: int | None = None, saturate: bool = False) -> Tensor:
    """`values` (float32) in `dtype`, each up or down with probability proportional to the distance.

    The expected result is the value itself, exactly for normal numbers and within 2^-38 for float16 subnormals. `key`
    (64 bits, as `keyed.fold` makes it) names the random bits; without one they are drawn from torch's own generator.
    """
    rounded = torch.empty_like(values, dtype=dtype)
    stochastic_round_into(rounded, values, key=key, saturate=saturate)
    return rounded


def stochastic_round_into(out: Tensor, values: Tensor, *, key: int | None = None, saturate: bool = False) -> None:
    """`stochastic_round` into an existing tensor of the half type."""
    if out.dtype not in _CUT_BITS:
        raise TypeError(f"stochastic rounding goes to float16 or bfloat16, not {out.dtype}")
    if values.numel() == 0:
        return
    if key is None:
        key = int(torch.randint(-(2**63), 2**63 - 1, ()).item())
    if values.dtype != torch.float32 or out.stride() != values.stride() or not _is_dense(values):
        dense = values.to(torch.float32, memory_format=torch.contiguous_format).contiguous()
        target = torch.empty_like(dense, dtype=out.dtype)
        stochastic_round_into(target, dense, key=key, saturate=saturate)
        out.copy_(target)
        return
    kernels = library("rounding") if values.device.type == "cpu" else None
    if kernels is None:
        _round_in_pieces(_flat(out), _flat(values), key, saturate)
        return
    brain = out.dtype == torch.bfloat16
    kernels.conveyor_round(values.data_ptr(), out.data_ptr(), values.numel(), key & keyed.WORD, brain, saturate)


def _round_in_pieces(out: Tensor, values: Tensor, key: int, saturate: bool) -> None:
    """The C kernel's arithmetic in PyTorch's operations, on flat tensors, in pieces that fit the cache."""
    size = values.numel() if values.is_cuda else _CHUNK
    for start in range(0, values.numel(), size):
        piece = values[start : start + size]
        noise = _random_bits(key, start, piece.numel(), _CUT_BITS[out.dtype], piece.device)
        out[start : start + size] = _cut(piece, noise, out.dtype, saturate)


def _cut(values: Tensor, noise: Tensor, dtype: torch.dtype, saturate: bool) -> Tensor:
    """Add `noise` below the last kept bit and cut: float32 values that `dtype` holds exactly."""
    mask = -(1 << _CUT_BITS[dtype])
    if dtype == torch.float16:
        # 2^-14 with the value's sign where |value| < 2^-14, else 0; in float arithmetic, since comparisons and
        # selections cost several times as much.
        offset = values.abs().neg_().add_(_SUBNORMAL).clamp_min_(0.0).sign_().mul_(_SUBNORMAL).copysign_(values)
        words = (values + offset).view(torch.int32).add_(noise).bitwise_and_(mask)
        cut = words.view(torch.float32).sub_(offset).copysign_(values)
    else:
        cut = (values.view(torch.int32) + noise).bitwise_and_(mask).view(torch.float32)
    if saturate:
        limit = torch.finfo(dtype).max
        cut.clamp_(-limit, limit)
    # A carry may have run through the bits of a NaN: adding 0 or NaN mends it, and a zero keeps its sign.
    return cut.add_(values.clamp(-1.0, 1.0).mul_(0.0))


def _random_bits(key: int, start: int, count: int, width: int, device: torch.device) -> Tensor:
    """int32 in [0, 2^width), width up to 16, for the elements from `start` (a multiple of 4) on: four from each word."""
    words = keyed.draws(key, start // 4, (count + 3) // 4, device)
    return words.view(torch.int16)[:count].to(torch.int32).bitwise_and_((1 << width) - 1)


def _is_dense(values: Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlap, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(values.stride(), values.shape, strict=True) if size > 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def _flat(values: Tensor) -> Tensor:
    """The elements of a dense tensor in the order of memory, without a copy."""
    return values.as_strided((values.numel(),), (1,), values.storage_offset())
