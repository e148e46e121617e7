"""What a user asks of the precision of answers, and the options to ask it with. No torch here."""

import argparse
import dataclasses

from conveyor.infer import PRECISIONS
from conveyor.options.coerce import checked
from conveyor.options.field import option
from conveyor.options.parser import add_settings, settings_from

CHOICES = (*map(str, PRECISIONS), "auto")


@dataclasses.dataclass(frozen=True, slots=True)
class AskedPrecision:
    """What a user asks for."""

    infer_precision: str | None = option(
        None, "Numbers to answer in; auto: the fastest within --max-drop of float32, measured.", choices=CHOICES
    )
    """None: an export's own, float32 for anything else."""
    max_drop: float = option(
        0.5, "Points of top-1 on validation images that bfloat16 or int8 may cost.", metavar="X", minimum=0
    )
    calibration_images: int = option(256, "Images that set the ranges of int8.", metavar="N", minimum=1)
    check_images: int = option(1000, "Validation images that --max-drop is about.", metavar="N", minimum=1)
    data_dir: str | None = None
    weight_bits: int | None = option(
        None,
        "Bits of int8 weights: 8 need VNNI, AMX or ARM's dot product where they run. [8 if this processor has them]",
        metavar="{8,7}",
        minimum=7,
        maximum=8,
    )


def add_infer_precision(parser: argparse._ActionsContainer, *, default: str = "an export's own, else float32") -> None:
    """Add `--infer-precision` and `--max-drop`."""
    add_settings(parser, AskedPrecision, "infer_precision", "max_drop", default=default)


def asked_precision(arguments: argparse.Namespace) -> AskedPrecision:
    """The `AskedPrecision` in a command's arguments, as far as the command has them."""
    return checked(settings_from(AskedPrecision, arguments))
