"""What the report says in short, and the table of classes."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from conveyor.report import sections
from conveyor.report.inputs import Calibration, Confusion, Run, read_run
from conveyor.report.verdict import verdict


def run_of(folder: Path, trained: list[float], validated: list[float], **more: Any) -> Run:
    folder.mkdir()
    for name, values in (("metrics", trained), ("validation", validated)):
        rows = "".join(f"{number},{number},{value}\n" for number, value in enumerate(values, 1))
        (folder / f"{name}.csv").write_text(f"update,epoch,accuracy\n{rows}")
    (folder / "options.yml").write_text("model: resnet8\n")
    return dataclasses.replace(read_run(folder), **more)


@pytest.mark.parametrize(
    ("trained", "validated", "said"),
    [
        ([50, 80, 99], [50, 70, 75], "It overfits: 99.0 % on training images, 75.0 % on others."),
        ([20, 30, 40, 50], [20, 30, 40, 50], "more --epochs: it was still getting better"),
        ([50, 50, 50, 50], [50, 50, 50, 50], "a larger --model or another rate"),
        ([90, 95, 97], [91, 94, 96], "Training and validation agree (97.0 and 96.0 %; best 96.0 %)."),
    ],
)
def test_how_it_learned(tmp_path: Path, trained: list[float], validated: list[float], said: str) -> None:
    assert said in verdict(run_of(tmp_path / "run", trained, validated))[0]


def test_where_the_time_went_and_what_to_take(tmp_path: Path) -> None:
    counts = {(0, 0): 9, (0, 1): 1, (1, 1): 5, (1, 2): 5, (2, 2): 10}
    found = verdict(
        run_of(
            tmp_path / "run",
            [95, 96],
            [97, 94],
            timing={"data": 40.0, "forward": 60.0},
            confusion=Confusion(["ape", "bee", "cat"], counts),
        )
    )
    assert any("The best was 97.0 %, 3.0 points above the last: take --checkpoint best" in one for one in found)
    assert any(one.startswith("40 % of the time went into waiting for images") for one in found)
    assert any("Weakest class: bee, 50 % recognised, most often taken for cat." in one for one in found)


def test_what_the_run_had_already_is_not_advised(tmp_path: Path) -> None:
    plain, *_ = verdict(run_of(tmp_path / "plain", [99], [75]))
    assert "--label-smoothing 0.1, more --weight-decay or --pretrained weights." in plain
    tuned, *_ = verdict(run_of(tmp_path / "tuned", [99], [75], options={"pretrained": "x", "label_smoothing": 0.1}))
    assert tuned.endswith("Try more images, --augment randaugment or more --weight-decay.")


def test_too_sure_is_said_of_the_average_alone(tmp_path: Path) -> None:
    def said(*bins: tuple[int, int, float]) -> str:
        return " ".join(verdict(run_of(tmp_path / str(bins), [75], [75], calibration=Calibration(list(bins)))))

    assert "sure" not in said((50, 25, 20.0), (50, 45, 50.0)), "too sure here, too little there"
    assert "too sure of itself, by 10 points" in said((100, 75, 85.0))


def test_a_run_without_validation_has_no_verdict(tmp_path: Path) -> None:
    assert verdict(run_of(tmp_path / "run", [50], [])) == []


def test_precision_recall_and_f1_of_the_classes() -> None:
    found = sections.classes(Confusion(["ape", "bee"], {(0, 0): 8, (0, 1): 2, (1, 0): 4, (1, 1): 6}))
    assert found is not None
    shown = {row[0].text: [cell.text for cell in row[1:5]] for row in found["rows"]}
    assert shown["ape"] == ["66.7 %", "80.0 %", "72.7 %", "10"]
    assert shown["bee"] == ["75.0 %", "60.0 %", "66.7 %", "10"]
    assert [row[0].text for row in found["rows"]] == ["bee", "ape"]
