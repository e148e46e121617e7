"""Values in the spellings of the dialects: booleans, fractions, lists and YAML texts, all through one converter."""

import math
from fractions import Fraction
from typing import Any

from conveyor.dialects.table import LISTS, Row
from conveyor.errors import UserError, did_you_mean
from conveyor.options.coerce import to_bool
from conveyor.options.file import parse
from conveyor.options.units import quotient

_SWITCH = "true or false (or t, f, 1, 0, yes, no, y, n, on, off)"
_WORDS = {
    "flag": _SWITCH,
    "off": _SWITCH,
    "int": "a whole number",
    "float": "a number",
    "switch": _SWITCH,
    "frequency": "a number or a fraction such as 1/2",
    "yaml": "a mapping such as '{momentum: 0.9}'",
}
_ITEMS = {"ints": "int", "floats": "float", "texts": "text"}


def convert(row: Row, value: Any, where: str = "") -> Any:
    """`value`, from the command line (text) or a YAML file (any type), as the kind of `row`."""
    place = f"{where}: " if where else ""
    if value is None:
        return None
    if row.kind in LISTS:
        parts = value if isinstance(value, list | tuple) else [value]
        if row.kind == "texts" and where:  # a list in YAML may hold several names in one text
            parts = [word for part in parts for word in str(part).split()]
        return [_one(row, _ITEMS[row.kind], part, place) for part in parts]
    if isinstance(value, list):
        if len(value) != 1:
            raise UserError(f"{place}{row.flag} takes one value, not {len(value)}")
        value = value[0]
    return _one(row, row.kind, value, place)


def _one(row: Row, kind: str, value: Any, place: str) -> Any:
    try:
        result = _convert(kind, value)
    except (ValueError, TypeError, ArithmeticError):
        raise UserError(f"{place}{row.flag} is {value!r}, but should be {_WORDS.get(kind, 'text')}") from None
    if row.least is not None and result < row.least:
        raise UserError(f"{place}{row.flag} is {value}, but must be at least {row.least:g}")
    if not row.choices or result in row.choices:
        return result
    folded = {str(choice).lower(): choice for choice in row.choices}
    if str(result).lower() not in folded:
        names = [str(choice) for choice in row.choices]
        hint = did_you_mean(str(value), names) or f" (choose from {', '.join(names)})"
        raise UserError(f"{place}{row.flag} cannot be {value!r}{hint}")
    return folded[str(result).lower()]


def _convert(kind: str, value: Any) -> Any:
    if kind in ("flag", "off", "switch"):
        return to_bool(value)
    if kind == "any":  # a text typed as a boolean: everything but the empty text is true
        return bool(value)
    if kind == "yaml":
        return _mapping(value)
    if isinstance(value, bool | dict | list):
        raise ValueError
    if kind == "int":
        number = float(value)
        if number != int(number):
            raise ValueError
        return int(number)
    if kind == "float":
        return _finite(value)
    if kind == "frequency":
        return quotient(str(value))
    text = str(value)
    return text.lower() if kind == "lower" else text.upper() if kind == "upper" else text


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def fractions(flag: str, text: str, hint: str = "numbers") -> list[Fraction]:
    """`0.5,0.75` as exact numbers."""
    try:
        return [quotient(part.strip()) for part in str(text).split(",")]
    except (ValueError, ZeroDivisionError):
        raise UserError(f"{flag} {text}: give {hint} separated by commas, such as 0.5,0.75") from None


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = parse(value, "the value")
        except UserError:
            raise ValueError from None
    if not isinstance(value, dict):
        raise ValueError
    return value


def number(row_flag: str, mapping: dict[str, Any], key: str, default: float | None = None) -> float:
    """A number out of a mapping option; YAML reads 1e-5 as text, so texts are converted. Only exponents are below 0."""
    if key not in mapping:
        if default is not None:
            return default
        raise UserError(f"{row_flag} needs {key!r}: add it, as in '{{{key}: 1}}'")
    try:
        if isinstance(mapping[key], bool):
            raise ValueError
        found = _finite(mapping[key])
    except (TypeError, ValueError):
        raise UserError(f"{row_flag}: {key} is {mapping[key]!r}, but should be a number") from None
    if found < 0 and not key.endswith("exponent"):
        raise UserError(f"{row_flag}: {key} is {mapping[key]!r}, but must be at least 0")
    return found
