"""Axes and thinning."""

import itertools
import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.monitor import svg

finite = st.floats(-1e9, 1e9, allow_nan=False)


@settings(max_examples=25, deadline=None)
@given(finite, finite)
def test_ticks_cover_the_range_evenly(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    if 0 < high - low < 1e-6 * max(abs(low), abs(high)):
        return
    marks = svg.ticks(low, high)
    tolerance = 1e-9 * max(1.0, abs(low), abs(high)) + 1e-12
    assert marks[0] <= low + tolerance
    assert marks[-1] >= high - tolerance
    assert 2 <= len(marks) <= 13
    steps = [b - a for a, b in itertools.pairwise(marks)]
    assert max(steps) - min(steps) <= 1e-6 * max(steps) + tolerance


def test_thinning_keeps_spikes_and_ends() -> None:
    points = [(float(x), math.sin(x / 50)) for x in range(5000)]
    points[1234] = (1234.0, 99.0)
    kept = svg.thinned(points)
    assert len(kept) <= svg.MAX_POINTS
    assert (1234.0, 99.0) in kept
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)


def test_thinning_keeps_spikes_beside_the_ends() -> None:
    points = [(float(x), 0.0) for x in range(5000)]
    points[1], points[2], points[-3], points[-2] = (1.0, -9.0), (2.0, 8.0), (4997.0, -7.0), (4998.0, 6.0)
    kept = svg.thinned(points)
    assert len(kept) <= svg.MAX_POINTS
    assert {points[0], points[1], points[2], points[-3], points[-2], points[-1]} <= set(kept)


def test_tiny_values_are_drawn() -> None:
    """A learning rate near the end of its decay."""
    assert svg.ticks(0.0, 2e-13) == [0.0, 5e-14, 1e-13, 1.5e-13, 2e-13]
    assert "<polyline" in svg.line_chart([svg.Series("lr", [(0, 2e-13), (1, 1e-13)])], label="x", y_range=(0.0, None))


def test_lines_stay_inside_the_picture() -> None:
    picture = svg.line_chart([svg.Series("a", [(0, -3.5), (1, 8.25), (2, 0)])], label="x")
    line = ElementTree.fromstring(picture).find("polyline")
    assert line is not None
    for pair in line.attrib["points"].split():
        x, y = map(float, pair.split(","))
        assert svg.LEFT <= x <= svg.WIDTH - svg.RIGHT
        assert svg.TOP <= y <= svg.HEIGHT - svg.BOTTOM


def test_nothing_to_draw() -> None:
    assert svg.line_chart([svg.Series("a", [])], label="x") == ""
    assert svg.stacked_bar([("a", 0.0, 0)], label="x") == ""


def test_a_single_point_is_a_dot() -> None:
    picture = svg.line_chart([svg.Series("a", [(3, 5)])], label="x")
    assert "<circle" in picture
    assert "polyline" not in picture


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.1, "0.1"), (0.00025, "2.5e-4"), (12500, "12.5k"), (2_500_000, "2.5M"), (3e9, "3G")]
)
def test_compact(value: float, text: str) -> None:
    assert svg.compact(value) == text
