"""Cases of how cost grows, tiny: they run, leave nothing behind and give the metrics that the specification asks for."""

import json
from pathlib import Path

import pytest

from conveyor.bench import growing
from conveyor.bench.bench_all import LARGE, SCALING
from conveyor.bench.scaling import METRICS
from conveyor.bench.spec import read_spec
from conveyor.errors import UserError
from conveyor.monitor.observers import METRICS_FILE_VARIABLE

ASKED = {
    words[3]: set(one.metrics)
    for path in (SCALING, LARGE)
    for one in read_spec(path).values()
    if (words := one.command.split())[:3] == ["conveyor", "bench", "grow"]
}


def test_every_case_of_the_specifications_is_known() -> None:
    assert set(ASKED) == set(growing.MEASURES)
    assert set().union(*ASKED.values()) <= set(METRICS)


@pytest.mark.parametrize(("what", "count"), [("files", 120), ("classes", 12), ("checkpoints", 3), ("requests", 20)])
def test_a_case_gives_what_is_asked_of_it(
    what: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(METRICS_FILE_VARIABLE, str(tmp_path / "metrics"))
    monkeypatch.setattr(growing, "LOAD_SECONDS", 1.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = growing.measure(what, count)
    assert set(found) == ASKED[what]
    assert all(value > 0 for value in found.values()), found
    (line,) = [json.loads(line) for line in (tmp_path / "metrics").read_text().splitlines()]
    assert {name: line[name] for name in found} == found
    assert not list(tmp_path.glob("conveyor-growth-*"))


def test_many_names_share_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "LINKS", 10)
    growing.make_class_folders(tmp_path, 250, 7)
    found = list(tmp_path.rglob("*.jpg"))
    assert len(found) == 250
    assert len(list(tmp_path.iterdir())) == 7
    assert len({path.stat().st_ino for path in found}) == 25
    assert max(path.stat().st_nlink for path in found) == 10


def test_a_command_that_fails_is_an_error_with_its_last_line() -> None:
    with pytest.raises(UserError, match=r"conveyor runs.*ended with 2: .*nothing at /nowhere/at/all: give a folder"):
        growing.run(["runs", "/nowhere/at/all"])
    with pytest.raises(UserError, match="choose files"):
        growing.measure("file", 1)
