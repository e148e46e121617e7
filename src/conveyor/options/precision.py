"""Number formats, rounding and loss scale."""

from dataclasses import dataclass

from conveyor.options.field import option
from conveyor.options.units import loss_scale_span


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionOptions:
    """Which number formats are used where."""

    precision: str = option(
        "32.32",
        "COMPUTE.MASTER: 32.32; 16.32 (half arithmetic, float32 weights); 16.16 (half throughout).",
        choices=("32.32", "16.32", "16.16"),
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
    fp_exceptions: bool = option(False, "Stop at the first value that is not finite and name the layer.")
