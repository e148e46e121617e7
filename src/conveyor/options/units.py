"""Values with a unit or a form: durations (`5ep`, `10%`), frequencies (`1/2`), sizes (`25MiB`), pairs (`bias:64`)."""

import dataclasses
import math
import re
from collections.abc import Sequence
from fractions import Fraction

from conveyor.errors import UserError, did_you_mean

_DURATION = re.compile(r"^\s*([0-9.]+(?:e-?[0-9]+)?(?:/[0-9]+)?)\s*(ep|epochs?|up|updates?|img|images?|%|s|min|h)?\s*$")
_DURATION_UNITS = {"epoch": "ep", "epochs": "ep", "update": "up", "updates": "up", "image": "img", "images": "img"}
_DECIMAL = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
NORMALIZATIONS = ("imagenet", "cifar", "mean", "centred", "per-image", "unit", "none")
_SIZE = re.compile(rf"^\s*{_DECIMAL}\s*([kmgt]?i?b?)\s*$", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class Duration:
    """A length of training: epochs (`ep`), updates (`up`), images (`img`) or a share of the run (`%`)."""

    amount: Fraction
    unit: str

    @classmethod
    def parse(cls, text: str, default_unit: str = "ep") -> "Duration":
        match = _DURATION.match(text)
        if match is None or match[2] in ("s", "min", "h"):
            raise UserError(f"{text!r} is not a duration: write 5ep, 500up, 1000img or 10%")
        unit = match[2] or default_unit
        try:
            return cls(quotient(match[1]), _DURATION_UNITS.get(unit, unit))
        except (ValueError, ZeroDivisionError):
            raise UserError(f"{match[1]!r} is not a number") from None

    def updates(self, *, updates_per_epoch: int | Fraction, updates_total: int, global_batch: int) -> Fraction:
        """The same length counted in weight updates; exact, so that the caller chooses how to round."""
        if self.unit == "up":
            return self.amount
        if self.unit == "ep":
            return self.amount * updates_per_epoch
        if self.unit == "img":
            return self.amount / global_batch
        return self.amount * updates_total / 100

    def __str__(self) -> str:
        return f"{format_fraction(self.amount)}{self.unit}"


def seconds(text: str) -> float:
    """A wall-clock time: `90s`, `30min`, `2h` or plain seconds."""
    match = re.match(rf"^\s*{_DECIMAL}\s*(s|min|m|h|d)?\s*$", text)
    if match is None:
        raise UserError(f"{text!r} is not a time: write 90s, 30min or 2h")
    return float(match[1]) * {"s": 1, None: 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[match[2]]


def frequency(text: str) -> Fraction:
    """Events per epoch: a number or `a/b`, kept exact."""
    try:
        value = quotient(text.replace(" ", ""))
    except (ValueError, ZeroDivisionError):
        raise UserError(f"{text!r} is not a frequency: write a number or a fraction such as 1/2") from None
    if value < 0:
        raise UserError(f"a frequency of {text} per epoch is negative: give 0 (never) or more")
    return value


def size_in_bytes(text: str) -> int:
    """`25MiB`, `10MB`, `900k` or plain bytes."""
    match = _SIZE.match(text)
    if match is None:
        raise UserError(f"{text!r} is not a size: write 25MiB, 10MB or plain bytes")
    letter = match[2].lower().rstrip("b").rstrip("i")
    decimal = match[2].lower().endswith("b") and "i" not in match[2].lower()
    return int(float(match[1]) * (1000 if decimal else 1024) ** " kmgt".index(letter or " "))


def cache_budget(text: str) -> int | None:
    """Bytes that may be kept in memory: `auto` (None), `off` (0) or a size."""
    return {"auto": None, "off": 0}[text] if text in ("auto", "off") else size_in_bytes(text)


def loss_scale_span(text: str) -> tuple[float, float] | str:
    """`128` -> (128, 128), `16..128` -> (16, 128); `auto` and `histogram` stay as they are."""
    text = text.strip().lower()
    if text in ("auto", "histogram"):
        return text
    first, dots, last = text.partition("..")
    low, high = _positive(first), _positive(last if dots else first)
    if low is None or high is None:
        raise UserError(f"{text!r} is no loss scale: give a number above 0, auto, histogram or a span such as 16..128")
    if high < low or high / low != 2.0 ** (round(high / low).bit_length() - 1):
        raise UserError(f"{text!r}: the last value must be the first doubled some times, such as 16..128")
    return low, high


def rate_factor(pair: str) -> tuple[str, float]:
    """`bias:64` -> ("bias", 64)."""
    name, _, text = pair.rpartition(":")
    factor = _positive(text)
    if not name or factor is None:
        raise UserError(f"{pair!r} is not NAME:FACTOR with a factor above 0, such as bias:64")
    return name, factor


def normalization(text: str) -> str | tuple[tuple[float, ...], tuple[float, ...]]:
    """A name as it is, or `0.5,0.5,0.5/0.25,0.25,0.25` as (means, deviations) of x / 255, one for each colour."""
    if text in NORMALIZATIONS:
        return text
    means, slash, deviations = (part.split(",") for part in text.partition("/"))
    try:
        if slash != ["/"]:
            raise ValueError
        found = tuple(float(one) for one in means), tuple(float(one) for one in deviations)
    except ValueError:
        hint = did_you_mean(text, NORMALIZATIONS)
        raise UserError(f"there is no normalisation {text!r}{hint}, nor is it MEAN,MEAN,MEAN/STD,STD,STD") from None
    if (
        len(found[0]) != 3
        or len(found[1]) != 3
        or not all(map(math.isfinite, found[0] + found[1]))
        or min(found[1]) <= 0
    ):
        raise UserError(f"{text!r}: give three means and three deviations above 0, of red, green and blue")
    return found


OPTIMIZERS = ("sgd", "momentum", "rmsprop", "adam", "adamw", "lars", "lamb", "muon")


def optimizer_name(text: str) -> str:
    """One of `OPTIMIZERS`, or MODULE:CLASS."""
    module, colon, name = text.rpartition(":")
    if text not in OPTIMIZERS and not (colon and module and name.isidentifier()):
        raise UserError(
            f"there is no optimizer {text!r}{did_you_mean(text, OPTIMIZERS)}, nor is it MODULE:CLASS such as torch.optim:NAdam"
        )
    return text


def named_number(text: str) -> tuple[str, float | tuple[float, ...] | bool]:
    """`rho=0.9`, `betas=0.9,0.99` or `amsgrad=true` as a name and its value."""
    name, _, value = text.partition("=")
    words = {"true": True, "false": False}
    try:
        if not name.isidentifier():
            raise ValueError
        numbers = tuple(float(one) for one in value.split(",")) if value not in words else ()
        whole = [int(one) if one.is_integer() and "." not in value and "e" not in value else one for one in numbers]
    except ValueError:
        raise UserError(f"{text!r}: give NAME=NUMBER, NAME=NUMBER,NUMBER or NAME=true") from None
    return name, words[value] if value in words else whole[0] if len(whole) == 1 else tuple(whole)


def jitter_reaches(given: Sequence[float]) -> tuple[float, ...]:
    """(brightness, contrast, saturation, hue) from one number for the first three, or from three or four numbers."""
    known = {1: (*given, *given, *given, 0.0), 3: (*given, 0.0), 4: tuple(given)}.get(len(given), (0.0,) * 4)
    if len(given) not in (0, 1, 3, 4) or known[3] > 0.5:
        raise UserError(
            f"--color-jitter {' '.join(f'{one:g}' for one in given)}: give one number for brightness, contrast and "
            "saturation, or three, and as a fourth the share of the circle, up to 0.5, by which hues turn"
        )
    return known


def size_from_epoch(pair: str) -> tuple[int, int]:
    """`10:128` -> (10, 128)."""
    epoch, colon, size = pair.partition(":")
    if not (colon and epoch.strip().isdecimal() and size.strip().isdecimal() and int(size) > 0):
        raise UserError(f"{pair!r} is not EPOCH:SIZE: write pairs such as 0:96 10:128")
    return int(epoch), int(size)


def format_fraction(value: Fraction) -> str:
    """`3`, `2.5` or, where no short decimal is exact, `1/3`."""
    if value.denominator == 1:
        return str(value.numerator)
    as_float = float(value)
    return repr(as_float) if Fraction(repr(as_float)) == value else f"{value.numerator}/{value.denominator}"


def many(count: float, what: str, form: str = "") -> str:
    """`1 epoch`, `2 epochs`, `3 classes`; with the form "," `1,200 images`."""
    plural = "" if count == 1 else "es" if what.endswith(("s", "tch")) else "s"
    return f"{count:{form or ('d' if isinstance(count, int) else 'g')}} {what}{plural}"


def _positive(text: str) -> float | None:
    """A finite number above 0; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def quotient(text: str) -> Fraction:
    """A number or `a/b`, exact; ValueError or ZeroDivisionError for anything else.

    An exponent has three digits at most: Python writes all billion digits of 1e999999999 out.
    """
    above, slash, below = text.partition("/")
    if "/" in below or re.search(r"e[-+]?[\d_]{4}", text, re.IGNORECASE):
        raise ValueError
    return Fraction(above) / Fraction(below) if slash else Fraction(above)
