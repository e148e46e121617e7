"""How values become half numbers: which format, to nearest or at random, to infinity or to the largest."""

import dataclasses

import torch
from torch import Tensor

from conveyor.numerics import context, keyed
from conveyor.numerics.rounding import round_nearest, stochastic_round


@dataclasses.dataclass(frozen=True, slots=True)
class HalfPolicy:
    """The rules of rounding that the layers of a model share."""

    dtype: torch.dtype = torch.float16
    stochastic: bool = False
    saturate: bool = False
    half_partials: bool = False

    def round(self, values: Tensor, label: str, key: context.Key | None) -> Tensor:
        """`values` (float32) as half numbers; `label` and `key` name the random numbers of stochastic rounding.

        Without a key, in a validation, values are rounded to nearest: the answer must not depend on chance.
        """
        if not self.stochastic or key is None:
            return round_nearest(values, self.dtype, saturate=self.saturate)
        state = keyed.state_of(key.seed, key.update, *key.slots, label)
        return stochastic_round(values, self.dtype, key=state, saturate=self.saturate)

    def is_native(self, device: torch.device) -> bool:
        """Whether convolutions run in half on `device`: it does so fast, with float32 partial sums, rounding to nearest."""
        return not self.stochastic and fast_half(device, self.dtype)


def fast_half(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `device` multiplies half matrices faster than float32 ones.

    A processor does with matrix tiles (AMX); one that merely knows the format is several times slower than in float32.
    """
    if device.type == "cuda":
        return dtype == torch.float16 or torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    test = "_is_amx_tile_supported" if dtype == torch.bfloat16 else "_is_amx_fp16_supported"
    return bool(getattr(torch.cpu, test, lambda: False)())
