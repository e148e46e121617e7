"""One typed path for every value: text from the command line, objects from YAML, arguments from Python."""

import dataclasses
import math
import reprlib
import types
import typing
from fractions import Fraction
from typing import Any, TypeVar

from conveyor.errors import UserError, did_you_mean
from conveyor.options.field import METADATA_KEY, About, about
from conveyor.options.units import Duration, format_fraction, frequency

TRUE_WORDS = ("true", "yes", "on", "1", "t", "y")
FALSE_WORDS = ("false", "no", "off", "0", "f", "n")
Settings = TypeVar("Settings")
LARGEST = 2**64
"""Larger whole numbers are refused: they are mistakes, and Python may refuse to print them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What an annotation such as `int | None` or `tuple[float, ...]` asks for."""

    item: type
    many: bool
    optional: bool

    @classmethod
    def of(cls, annotation: Any) -> "Kind":
        optional = False
        if typing.get_origin(annotation) in (types.UnionType, typing.Union):
            (annotation,) = (part for part in typing.get_args(annotation) if part is not types.NoneType)
            optional = True
        if typing.get_origin(annotation) is tuple:
            return cls(typing.get_args(annotation)[0], True, optional)
        return cls(annotation, False, optional)


def coerce(name: str, kind: Kind, about: About, value: Any) -> Any:
    """`value` as the option's type; a UserError says what is wrong with it."""
    if value is None or (
        isinstance(value, str) and kind.optional and value.lower() == "none" and "none" not in about.choices
    ):
        if kind.optional:
            return None
        raise UserError(f"{name} needs a value{_expected(kind, about)}")
    if kind.many:
        parts = value if isinstance(value, list | tuple) else [value]
        return tuple(_one(name, kind, about, part) for part in parts)
    if isinstance(value, list | tuple | dict):
        raise UserError(f"{name} takes one value{_expected(kind, about)}, not {_shown(value)}")
    if value == "" and kind.optional and kind.item is str:
        raise UserError(
            f"{name} is empty: give a value, or leave the option out (is a variable of your shell not set?)"
        )
    return _one(name, kind, about, value)


def checked(settings: Settings) -> Settings:
    """A command's settings, each declared one (`option`) within what its declaration allows; else a UserError."""
    kinds = typing.get_type_hints(type(settings))
    values = {
        field.name: coerce(
            f"--{field.name.replace('_', '-')}", Kind.of(kinds[field.name]), about(field), getattr(settings, field.name)
        )
        for field in dataclasses.fields(settings)  # type: ignore[arg-type]
        if METADATA_KEY in field.metadata
    }
    return dataclasses.replace(settings, **values)  # type: ignore[type-var]


def to_plain(value: Any) -> Any:
    """The value as YAML and JSON write it; `coerce` reads it back unchanged."""
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else format_fraction(value)
    if isinstance(value, Duration):
        return str(value)
    if isinstance(value, tuple):
        return [to_plain(part) for part in value]
    return value


def _one(name: str, kind: Kind, about: About, value: Any) -> Any:
    try:
        result = _convert(kind.item, value, about)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    except (ValueError, TypeError, ArithmeticError):
        raise UserError(f"{name} is {_shown(value)}{_expected(kind, about, 'but should be')}") from None
    if about.choices and about.read is None and result not in about.choices:
        raise UserError(f"{name} cannot be {_shown(value)}{did_you_mean(str(value)[:100], about.choices)}")
    if isinstance(result, int | float) and not isinstance(result, bool):
        _check_range(name, about, result)
    return result


def _convert(item: type, value: Any, about: About) -> Any:
    if item is bool:
        return to_bool(value)
    if isinstance(value, bool | list | tuple | dict):
        raise ValueError
    if item is int:
        return _whole(value)
    if item is float:
        return float(Fraction(value)) if isinstance(value, str) and "/" in value else float(value)
    if item is Fraction:
        return frequency(str(value))
    if item is Duration:
        return value if isinstance(value, Duration) else Duration.parse(str(value))
    text = str(value)
    if about.choices:
        folded = {choice.lower(): choice for choice in about.choices}
        text = folded.get(text.lower(), text)
    if about.read is not None and text not in about.choices:
        about.read(text)
    return text


def to_bool(value: Any) -> bool:
    """A boolean in any of the common spellings; anything else is an error, not a guess."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError


def _whole(value: Any) -> int:
    """The number in 12, 12.0, "12" or "1e3"."""
    if isinstance(value, float) or (isinstance(value, str) and not value.strip().lstrip("+-").isdecimal()):
        value = float(value)
        if value != int(value):
            raise ValueError
    if abs(int(value)) > LARGEST:
        raise UserError("the number is too large")
    return int(value)


def _check_range(name: str, about: About, value: float) -> None:
    unit = about.unit and (about.unit if about.unit == "%" else f" {about.unit}")
    if value != value:
        raise UserError(f"{name} is not a number; give a finite number")
    if value in (math.inf, -math.inf):
        raise UserError(f"{name} is infinite; give a finite number")
    if about.minimum is not None and value < about.minimum:
        raise UserError(f"{name} is {value:g}{unit}; the smallest value is {about.minimum:g}{unit}")
    if about.maximum is not None and value > about.maximum:
        raise UserError(f"{name} is {value:g}{unit}; the largest value is {about.maximum:g}{unit}")
    if about.above is not None and value <= about.above:
        raise UserError(f"{name} is {value:g}{unit}; give a number above {about.above:g}{unit}")
    if about.below is not None and value >= about.below:
        raise UserError(f"{name} is {value:g}{unit}; give a number below {about.below:g}{unit}")


def _shown(value: Any) -> str:
    """The value for a message: short, whatever it holds."""
    shown = reprlib.Repr()
    shown.maxlevel, shown.maxstring, shown.maxother = 3, 80, 80
    if isinstance(value, int) and abs(value) > LARGEST:
        return "a number that is too large"
    return shown.repr(value)


def _expected(kind: Kind, about: About, words: str = "of the form") -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if about.choices:
        return f", {words} one of {', '.join(about.choices)}"
    if kind.item is Duration:
        return f", {words} a duration such as 5ep, 500up or 10%"
    return f", {words} {names.get(kind.item, 'a number or a fraction')}"
