"""Loaders beside each other: rates, ratios, and who cannot run."""

from pathlib import Path

import pytest
from tests.data.photos import encoded, picture

from conveyor.bench.loader_comparison import measure, record
from conveyor.bench.records import OURS
from conveyor.errors import UserError


def test_without_our_side_there_is_no_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.jpg").write_bytes(encoded(picture(40, 50)))
    monkeypatch.setattr("conveyor.bench.loader_peers.available", dict)
    with pytest.raises(UserError, match="our own side did not run: it was left out"):
        measure([tmp_path / "0.jpg"], size=16, batch=1, threads=1, rounds=1)


def test_ratios_are_taken_round_by_round() -> None:
    times = {OURS: [(1.0, 2.0), (2.0, 2.0)], "other": [(2.0, 2.0), (1.0, 4.0)]}
    answers = {
        name: [{"images": 10, "seconds": wall, "cpu_seconds": cpu} for wall, cpu in rounds]
        for name, rounds in times.items()
    }
    found = record(answers, 16, absent={}).results
    assert found["ratio to other in images per second"].values == (2.0, 0.5)
    assert found["ratio to other"].values == (1.0, 2.0)
    assert found[f"{OURS} rate"].values == (5.0, 5.0)
