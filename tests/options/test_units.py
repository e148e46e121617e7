"""Durations, frequencies and sizes."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.errors import UserError
from conveyor.options.units import Duration, format_fraction, frequency, seconds, size_in_bytes


@pytest.mark.parametrize(
    ("text", "updates"),
    [
        ("5ep", 500),
        ("5", 500),
        ("0.5ep", 50),
        ("1/3ep", Fraction(100, 3)),
        ("7up", 7),
        ("10%", 200),
        ("640img", 10),
        ("2 epochs", 200),
    ],
)
def test_durations_in_updates(text: str, updates: Fraction) -> None:
    assert Duration.parse(text).updates(updates_per_epoch=100, updates_total=2000, global_batch=64) == updates


@pytest.mark.parametrize("text", ["", "ep", "5 parsecs", "1h", "-3ep", "1/0ep", "five", "1e999999999ep", "1e-9999up"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(UserError):
        Duration.parse(text)


@given(st.fractions(0, 1000), st.sampled_from(["ep", "up", "img", "%"]))
def test_a_duration_is_read_back_as_written(amount: Fraction, unit: str) -> None:
    duration = Duration(amount, unit)
    assert Duration.parse(str(duration)) == duration


def test_frequencies() -> None:
    assert frequency("1/3") == Fraction(1, 3)
    assert frequency("0.25") == Fraction(1, 4)
    assert frequency("0.5/2") == Fraction(1, 4)
    for wrong in ("a", "1/2/3", "1/", "/2", "1/0", "-1", "1e999999999", "1/1e-999999999"):
        with pytest.raises(UserError):
            frequency(wrong)


def test_sizes_and_times() -> None:
    assert [size_in_bytes(text) for text in ("12", "900k", "10MB", "25MiB", "1.5GiB")] == [
        12, 921_600, 10_000_000, 26_214_400, 1_610_612_736,
    ]  # fmt: skip
    assert [seconds(text) for text in ("90", "90s", "2min", "1.5h")] == [90, 90, 120, 5400]
    for wrong in ("lots", "3XB"):
        with pytest.raises(UserError):
            size_in_bytes(wrong)


@given(st.fractions(-1000, 1000))
def test_fractions_are_written_exactly(value: Fraction) -> None:
    assert Fraction(format_fraction(value)) == value
