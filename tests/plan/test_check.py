"""Predictions beside real runs."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from conveyor.cli import main
from conveyor.data.subject import Subject, planned
from conveyor.errors import UserError
from conveyor.monitor import timeline
from conveyor.options import Options
from conveyor.plan import check, planner
from conveyor.plan.choose import Proposal
from conveyor.plan.timetable import simulate

SMALL = ["--model", "cifar_resnet8", "--image-size", "16", "--num-classes", "10"]


def test_the_timetable_of_two_real_workers_is_the_one_that_was_run(tmp_path: Path) -> None:
    """Pass times from the run itself go into the simulator: order and makespan must come out about as they were."""
    ratios: list[float] = []
    for attempt in range(4):  # other programs only ever make an update longer, so the least disturbed one counts
        ratios += makespans(tmp_path / f"run{attempt}")
        if min(ratios) < 3.0:
            break
    # Sending makes the real one longer; it cannot be much shorter than its own passes allow.
    assert 0.6 < min(ratios) < 3.0


def test_a_run_that_was_killed_without_a_word_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class OneLayout:
        layout = "1x2"

        def train_options(self) -> dict[str, object]:
            return {}

    killed = subprocess.CompletedProcess([], -9, stdout="", stderr="")
    monkeypatch.setattr("conveyor.plan.short_run.subprocess.run", lambda *words, **more: killed)
    options = Options().replace(model="cifar_resnet8", image_size=16)
    with pytest.raises(UserError, match="layout 1x2 could not be run: it ended with code -9"):
        check.measure(options, planned(options), OneLayout())  # type: ignore[arg-type]


def makespans(folder: Path) -> list[float]:
    """Measured through simulated length of the recorded updates of one run."""
    words = [
        "train", "--data", "digits", "--model", "cifar_resnet8", "--image-size", "16", "--updates", "4", "--micro-batch-size", "48", "--accumulation", "4",
        "--stages", "2", "--splits", "auto", "--layout", "1x2", "--no-validation", "--checkpoints-per-epoch", "0",
        "--no-report", "--no-tensorboard", "--quiet", "--run-dir", str(folder),
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "conveyor", *words], check=True, capture_output=True, timeout=200)
    spans = timeline.read(folder)
    passes = [span for span in spans if span["phase"] in ("forward", "backward")]
    assert {span["worker"] for span in passes} == {0, 1}
    timing = json.loads((folder / "timing.json").read_text())
    assert min(timing["forward"], timing["backward"], timing["wait"]) > 0
    assert 0 <= timing["data"] < sum(timing.values()) / 2
    ends = sorted(span["end"] for span in spans if span["phase"] == "update" and span["worker"] == 0)
    ratios = []
    for begin, end in itertools.pairwise([0.0, *ends]):
        inside = [span for span in passes if begin - 1e-6 <= span["start"] and span["end"] <= end + 1e-6]
        if len(inside) != 2 * 2 * 4:
            continue
        mean = {
            (phase, stage): sum(span["end"] - span["start"] for span in inside if (span["phase"], span["stage"]) == (phase, stage)) / 4
            for phase, stage in itertools.product(("forward", "backward"), (0, 1))
        }  # fmt: skip
        table = simulate(
            "gpipe", [mean["forward", 0], mean["forward", 1]], [mean["backward", 0], mean["backward", 1]], 4
        )
        measured = max(span["end"] for span in inside) - min(span["start"] for span in inside)
        ratios.append(measured / float(table.makespan))
        for span in inside:
            if span["phase"] == "forward" and span["stage"] == 1:
                before = next(
                    s for s in inside if s["phase"] == "forward" and s["stage"] == 0 and s["slot"] == span["slot"]
                )
                assert span["end"] > before["end"]
    assert ratios
    return ratios


def test_check_predicts_and_runs_every_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Proposal] = []

    def half_as_fast(options: Options, about: Subject, one: Proposal) -> float:
        ran.append(one)
        return one.images_per_second / 2

    estimated = planner.cost_model
    monkeypatch.setattr(check, "measure", half_as_fast)
    monkeypatch.setattr(planner, "cost_model", lambda *args, **more: estimated(*args, **{**more, "measure": False}))
    assert main(["plan", *SMALL, "--devices", "2", "--micro-batch-size", "4", "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["comparisons"]
    assert len(found) == 8
    assert len(ran) == 3 * 8
    assert all(len(one["predictions"]) == len(one["measurements"]) == 3 for one in found)
    assert {one["layout"] for one in found} == {"1x1", "2x1", "1x2"}
    assert all(one["error"] == pytest.approx(1.0) for one in found)


def test_a_real_run_is_measured() -> None:
    options = Options().replace(model="cifar_resnet8", image_size=16, num_classes=10, micro_batch_size=4)
    about = planned(options)
    hardware = planner.hardware_here(options)
    model = planner.cost_model(options, about, hardware, measure=False)
    asked = planner.wanted(options.replace(layout="1x1"), 1, None)
    best = planner.plan(model, hardware, asked)[0]
    assert check.measure(options, about, best, updates=3) > 0
