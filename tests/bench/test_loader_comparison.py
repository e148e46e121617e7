"""Loaders beside each other: rates, ratios, and who cannot run."""

from pathlib import Path

import pytest
from tests.data.photos import encoded, picture

from conveyor.bench.loader_comparison import compare, rows
from conveyor.bench.loader_speed import Rate
from conveyor.bench.records import OURS
from conveyor.errors import UserError


def test_without_our_side_there_is_no_comparison(tmp_path: Path) -> None:
    (tmp_path / "0.jpg").write_bytes(encoded(picture(40, 50)))
    with pytest.raises(UserError, match="our own side did not run: it was left out"):
        compare(["nobody"], [tmp_path / "0.jpg"], size=16, batch=1, threads=1, rounds=1)


def test_ratios_are_taken_round_by_round() -> None:
    ours, theirs = [Rate(10, 1.0, 2.0), Rate(10, 2.0, 2.0)], [Rate(10, 2.0, 2.0), Rate(10, 1.0, 4.0)]
    row = rows({OURS: ours, "other": theirs})[1]
    assert row["ratios"] == [2.0, 0.5]
    assert row["cpu_ratios"] == [1.0, 2.0]
