"""Layouts beside each other: the arithmetic of the record, and a program that answers."""

import io
import json

import pytest

from conveyor.bench import lanes
from conveyor.bench.lanes import Work, ideal_seconds, measure, serve
from conveyor.errors import UserError
from conveyor.layout import usable_cores
from conveyor.measure.rounds import Measured
from conveyor.spec import resolve
from conveyor.world.world import World

WORK = Work("resnet8", 16, 2, 4)


def test_the_ideal_of_equal_stages_is_the_familiar_one() -> None:
    for schedule in ("gpipe", "1f1b"):
        assert ideal_seconds([(1, 2), (1, 2), (1, 2)], 8, schedule) == pytest.approx(3 * (8 + 3 - 1))
    assert ideal_seconds([(1, 2), (2, 4)], 8, "gpipe") == pytest.approx(8 * 6 + 3), "the slower stage sets the pace"


def test_a_record_says_what_the_layouts_cost() -> None:
    answers = {
        "1x1": [{"seconds": 4.0, "images": 64, "alone": [0.0], "splits": []}] * 2,
        "2x1": [{"seconds": 2.1, "images": 64, "alone": [1.9, 2.1], "splits": []}] * 2,
        "1x2": [{"seconds": 2.5, "images": 64, "alone": [[0.1, 0.15], [0.1, 0.15]], "splits": ["layer2"]}] * 2,
    }
    rates = {name: [one["images"] / one["seconds"] for one in rounds] for name, rounds in answers.items()}
    record = lanes._record(Work(slots=8), 2, Measured(rates, {}, answers=answers), updates=1)
    assert record.results["2x1 / 1x1"].median == pytest.approx(4 / 2.1)
    assert record.results["overhead of lanes"].median == pytest.approx(5.0)
    assert record.results["share of ideal"].median == pytest.approx(100 * 9 * 0.25 / 2.5)
    assert record.conditions["splits"] == ["layer2"]
    assert record.conditions["threads"] == 2


def test_a_layout_answers_until_there_are_no_more_requests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"steps": 2}\n'))
    serve(resolve(WORK.options("1x1", 1)), World())
    ready, answer = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert ready["images"] == 2 * 2 * 4, "two updates to warm up"
    assert answer["images"] == 2 * 2 * 4
    assert answer["seconds"] > 0


def test_lanes_need_cores() -> None:
    with pytest.raises(UserError, match="two cores"):
        measure(WORK, 1, rounds=1, updates=1)


@pytest.mark.conformance
@pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")
def test_three_layouts_are_measured_beside_each_other() -> None:
    record = measure(WORK, 2, rounds=1, updates=1)
    assert {"1x1 rate", "2x1 rate", "1x2 rate", "overhead of lanes", "share of ideal"} <= record.results.keys()
