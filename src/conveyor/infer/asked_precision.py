"""What a user asks of the precision of answers, and the options to ask it with. No torch here."""

import argparse
import dataclasses
from typing import Any

from conveyor.errors import UserError, did_you_mean
from conveyor.infer import PRECISIONS
from conveyor.options.parser import add, settings_from

CHOICES = (*PRECISIONS, "auto")


@dataclasses.dataclass(frozen=True, slots=True)
class AskedPrecision:
    """What a user asks for."""

    precision: str | None = None
    """Of `CHOICES`; none: an export's own, float32 for anything else."""
    max_drop: float = 0.5
    """Percentage points of top-1 that another precision may cost."""
    calibration_images: int = 256
    check_images: int = 1000
    data_dir: str | None = None
    weight_bits: int | None = None
    """Of an 8-bit model, 8 or 7; none: what this processor multiplies without saturation."""

    def check(self) -> "AskedPrecision":
        if self.precision is not None and self.precision not in CHOICES:
            raise UserError(f"there is no precision {self.precision!r}{did_you_mean(self.precision, CHOICES)}")
        for option in ("calibration_images", "check_images"):
            if getattr(self, option) < 1:
                raise UserError(f"--{option.replace('_', '-')} {getattr(self, option)}: give at least 1")
        if not self.max_drop >= 0:  # of "not a number" too: it would let everything pass
            raise UserError(f"--max-drop {self.max_drop:g}: give the points that a precision may cost, 0 or more")
        if self.weight_bits not in (None, 7, 8):
            raise UserError(f"--weight-bits {self.weight_bits}: 8-bit models have weights of 8 or of 7 bits")
        return self

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def add_infer_precision(parser: argparse._ActionsContainer, *, default: str = "an export's own, else float32") -> None:
    """Add `--infer-precision` and `--max-drop`."""
    parser.add_argument(
        "--infer-precision",
        metavar=f"{{{','.join(CHOICES)}}}",
        help=f"Numbers to answer in; auto: the fastest within --max-drop of float32, measured. [{default}]",
    )
    add(parser, "--max-drop", 0.5, "X", "Points of top-1 on validation images that bfloat16 or int8 may cost.")


def asked_precision(arguments: argparse.Namespace) -> AskedPrecision:
    """The `AskedPrecision` in a command's arguments, as far as the command has them."""
    return settings_from(AskedPrecision, arguments, precision=arguments.infer_precision).check()
