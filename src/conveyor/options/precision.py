"""Number formats, rounding and loss scale."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conveyor.errors import UserError
from conveyor.options.field import option
from conveyor.options.units import loss_scale_span

SHORT = {"bf16": "bfloat16", "fp16": "float16"}
"""Short spellings of --precision: the half type of 16.32."""


def check_short(asked: Mapping[str, Any]) -> None:
    """Refuse a short spelling together with another half type."""
    half = SHORT.get(asked.get("precision", ""))
    if half is not None and asked.get("half_type", half) != half:
        raise UserError(
            f"--precision {asked['precision']} means {half}, but --half-type says {asked['half_type']}: leave one of them out"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionOptions:
    """Which number formats are used where."""

    precision: str = option(
        "32.32",
        "Number formats, COMPUTE.MASTER: 32.32; 16.32 (half arithmetic, float32 weights); 16.16 (half throughout). bf16 and fp16 are short for"
        " 16.32 with --half-type bfloat16 and float16.",
        choices=("32.32", "16.32", "16.16", "bf16", "fp16"),
    )
    half_type: str = option("float16", "The 16-bit format.", choices=("float16", "bfloat16"))
    half_partials: bool = option(False, "Partial sums of convolutions in half precision too.")
    stochastic_rounding: str = option(
        "off",
        "Round at random in proportion to the distance: off, weights, or all (activations too).",
        choices=("off", "weights", "all"),
    )
    loss_scale: str = option(
        "1",
        "A number; auto (halved on overflow, doubled after a while); histogram; or 16..128 (doubling over the epochs).",
        read=loss_scale_span,
    )
    saturate: bool = option(False, "Clamp to the largest half value instead of infinity.")
    tf32: bool = option(
        False,
        "On a GPU: operands of float32 products rounded to TF32, several times as fast; without it float32 is float32.",
    )
    compile: bool = option(
        False,
        "The blocks' training passes through torch.compile: needs a C++ compiler, on a GPU Triton. Rounds differently than without.",
    )
    fp_exceptions: bool = option(False, "Stop at the first value that is not finite and name the layer.")

    @property
    def is_half(self) -> bool:
        """Whether the arithmetic is in half precision."""
        return self.precision.startswith("16")

    @property
    def text(self) -> str:
        """For people: 32.32, or 16.32 (bfloat16)."""
        return f"{self.precision} ({self.half_type})" if self.is_half else self.precision

    def __post_init__(self) -> None:
        """Expand a short spelling here, so that other code sees only the long form."""
        half = SHORT.get(self.precision)
        if half is not None:
            object.__setattr__(self, "precision", "16.32")
            object.__setattr__(self, "half_type", half)
