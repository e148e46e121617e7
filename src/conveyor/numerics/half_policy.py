"""How values become half numbers: which format, to nearest or at random; values too large become infinity or the largest half."""

import dataclasses

import torch
from torch import Tensor

from conveyor.measure.processor import has
from conveyor.numerics import context, half_native, keyed
from conveyor.numerics.convolution import Geometry
from conveyor.numerics.rounding import round_nearest, stochastic_round


@dataclasses.dataclass(frozen=True, slots=True)
class HalfPolicy:
    """The rules of rounding that the layers of a model share."""

    dtype: torch.dtype = torch.float16
    stochastic: bool = False
    saturate: bool = False
    half_partials: bool = False
    native: bool | None = None
    """Whether a CPU computes in half, as the run has it; None: if it has instructions for it."""
    wide: frozenset[str] = frozenset()
    """Operations of layers (`half_native.key`) that were found to be slower in half: they compute in float32."""
    winograd: frozenset[str] = frozenset()
    """Those that were found to be faster by Winograd's filtering."""

    def round(self, values: Tensor, label: str, key: context.Key | None) -> Tensor:
        """`values` (float32) as half numbers; `label` and `key` name the random numbers of stochastic rounding.

        Without a key, in a validation, values are rounded to nearest: the answer must not depend on chance.
        """
        if not self.stochastic or key is None:
            return round_nearest(values, self.dtype, saturate=self.saturate)
        state = keyed.state_of(key.seed, key.update, *key.slots, label)
        return stochastic_round(values, self.dtype, key=state, saturate=self.saturate)

    def is_native(self, device: torch.device) -> bool:
        """Whether convolutions run in half on `device`, which sums in float32 and rounds to nearest: where that is faster."""
        if self.stochastic or (self.half_partials and device.type == "cpu"):
            return False
        return self.native if self.native is not None and device.type == "cpu" else fast_half(device, self.dtype)

    def way(self, operation: str, x: Tensor, weight: Tensor, geometry: Geometry) -> str:
        """How an operation of a convolution (`half_native.OPERATIONS`) computes: in `half`, by `winograd`, in `float32`."""
        if not self.is_native(x.device):
            return "float32"
        if not self.wide and not self.winograd:
            return "half"
        key = half_native.key(operation, x, weight, geometry)
        if key in self.wide:
            return "float32"
        return "winograd" if key in self.winograd and half_native.suits_winograd(x, weight, geometry) else "half"


INSTRUCTIONS = {
    torch.bfloat16: ("amx_bf16", "avx512_bf16", "bf16"),
    torch.float16: ("amx_fp16", "avx512_fp16"),
}
"""Features of which a processor that multiplies matrices of a half type has at least one; `bf16` is ARM's."""


def fast_half(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `device` multiplies half matrices faster than float32 ones: a processor has instructions for it."""
    if device.type == "cuda":
        return dtype == torch.float16 or torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    return any(map(has, INSTRUCTIONS[dtype]))
