"""Records keep what they were given; a difference is called one only beyond the noise."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.bench import records
from conveyor.bench.records import Difference, Record, Sample, compare, load_record, make_record, ratios
from conveyor.errors import UserError

values = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=5).map(tuple)


@given(values)
def test_a_record_is_read_back(numbers: tuple[float, ...]) -> None:
    record = make_record("x", {"rate": Sample("img/s", numbers)}, batch=3)
    assert Record.from_json(record.to_json(), "here") == record


def test_a_record_can_be_judged_without_this_program() -> None:
    plain = json.loads(make_record("x", {"rate": Sample("img/s", (3.0, 1.0, 8.0))}).to_json())
    assert plain["results"]["rate"] == {
        "unit": "img/s", "values": [3.0, 1.0, 8.0], "n": 3, "median": 3.0, "low": 1.0, "high": 8.0,
    }  # fmt: skip


def test_the_load_is_that_before_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_record("x", {}).machine["load_before"]
    monkeypatch.setattr("os.getloadavg", lambda: (987.0, 987.0, 987.0))
    monkeypatch.setattr("psutil.getloadavg", lambda: (987.0, 987.0, 987.0))
    assert make_record("x", {}).machine["load_before"] == before < 987.0


def test_the_commit_is_ours_and_not_that_of_a_repository_around_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        name = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True)

    package = tmp_path / ".venv" / "conveyor" / "bench"
    package.mkdir(parents=True)
    (package / "records.py").touch()
    (tmp_path / ".gitignore").write_text(".venv\n")
    git("init", "-q")
    git("add", ".gitignore")
    git("commit", "-qm", "theirs")
    monkeypatch.setattr(records, "__file__", str(package / "records.py"))
    assert records._commit() == ""
    git("add", "-f", ".venv")
    assert records._commit().endswith("+")


def test_a_record_says_where_it_was_made(tmp_path: Path) -> None:
    record = make_record("x", {"rate": Sample("img/s", (1.0,))}, threads=2)
    assert {"processor", "cores", "commit", "libraries", "python", "load_before"} <= set(record.machine)
    assert record.machine["libraries"]["torch"].startswith("2.")
    assert load_record(record.save(tmp_path)) == record


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ((10, 11, 12), (10.5, 11.2, 12.5), "within the noise"),
        ((10, 10.1, 10.2), (12, 12.1, 12.3), "higher, beyond the noise"),
        ((10, 10.1, 10.2), (8, 8.1, 8.3), "lower, beyond the noise"),
        ((10, 14), (14.1, 14.2), "higher, beyond the noise"),
        ((10,), (20,), "cannot tell (one value)"),
        ((3, 3), (3, 3), "within the noise"),
        ((0, 0), (5, 5), "higher, beyond the noise"),
        ((5, 5), (0, 0), "lower, beyond the noise"),
        ((-5, -5.1), (-10, -10.2), "lower, beyond the noise"),
        ((float("nan"), 1), (10, 11), "cannot tell (not a number)"),
    ],
)
def test_verdicts(before: tuple[float, ...], after: tuple[float, ...], verdict: str) -> None:
    assert Difference("rate", Sample("x", before), Sample("x", after)).verdict == verdict


def test_quantities_of_different_units_are_not_compared() -> None:
    difference = Difference("time", Sample("s", (1, 1.1)), Sample("ms", (1000, 1001)))
    assert difference.verdict == "cannot tell (different units)"
    assert not difference.beyond_noise


def test_what_only_one_record_holds_is_named(tmp_path: Path, conveyor: Callable[..., tuple[int, str, str]]) -> None:
    both = Sample("img/s", (1.0, 2.0))
    paths = [make_record(f"r{other}", {"rate": both, other: both}).save(tmp_path) for other in ("old peer", "new peer")]
    code, out, _ = conveyor("bench", "compare", *paths)
    assert code == 0
    assert f"only in {paths[0]}: old peer" in out
    assert f"only in {paths[1]}: new peer" in out


def test_compare_needs_something_in_common() -> None:
    one, other = (make_record("x", {name: Sample("", (1.0,))}) for name in "ab")
    with pytest.raises(UserError, match="in common"):
        compare(one, other)


EMPTY = '{"name": "x", "results": {"a": {"unit": "", "values": []}}, "conditions": {}, "machine": {}, "time": ""}'


def test_damaged_records_are_named(tmp_path: Path) -> None:
    for number, text in enumerate(["", "[]", "{}", '{"results": 3}', '{"name": 1, "results": {"a": {}}}', EMPTY]):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        with pytest.raises(UserError, match=f"{number}.json"):
            load_record(path)


def test_ratios_go_round_by_round() -> None:
    assert ratios([2, 6], [1, 2]).values == (2, 3)
