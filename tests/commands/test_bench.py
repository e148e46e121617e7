"""Mistakes on the command line of `conveyor bench` are one sentence."""

from collections.abc import Callable
from pathlib import Path

import pytest

Conveyor = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --spec cnns --repeats 0", "--repeats: should be a whole number above 0, not '0'"),
        ("run --spec cnns --repeats -2", "--repeats: should be a whole number above 0, not '-2'"),
        ("peers training --rounds 0", "--rounds: should be a whole number above 0"),
        ("peers inference --batch 0", "--batch: should be a whole number above 0"),
        ("peers inference --minutes nan", "--minutes: should be a number of 0 or more, not 'nan'"),
        ("lanes --updates 0", "--updates: should be a whole number above 0"),
        ("limits --threads -1", "--threads: should be a whole number above 0"),
        ("all --minutes -1", "--minutes: should be a number of 0 or more"),
        ("peers training --only Lightnin", "no comparison for 'Lightnin' (did you mean 'Lightning Trainer'?)"),
        ("peers inference --only OpenVin", "no comparison for 'OpenVin' (did you mean 'OpenVINO' or 'OpenVINO int8'?)"),
        ("run --spec cnns --bechmark x", "there is no option --bechmark (did you mean --benchmark?)"),
    ],
)
def test_mistakes(words: str, said: str, conveyor: Conveyor, tmp_path: Path) -> None:
    code, out, error = conveyor("bench", *words.split(), "--out", tmp_path)
    assert (code, out) == (2, "")
    assert said in error
    assert error.count("\n") == 1


def test_an_export_that_is_not_there_is_one_sentence(conveyor: Conveyor, tmp_path: Path) -> None:
    code, _, error = conveyor("bench", "serving", tmp_path / "nowhere", "--out", tmp_path)
    assert code == 2
    assert "nowhere cannot be served: there is nothing at" in error


def test_the_nearest_file_is_named(conveyor: Conveyor, tmp_path: Path) -> None:
    (tmp_path / "benchmarks.yml").write_text("a: {cmd: x}")
    code, _, error = conveyor("bench", "run", "--spec", tmp_path / "benchmark.yml")
    assert code == 2
    assert f"did you mean '{tmp_path / 'benchmarks.yml'}'" in error
