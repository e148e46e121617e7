"""Sweeps: real trials, a kill in the middle, the same trials as without it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conveyor import cli
from conveyor.commands.sweep import summary
from conveyor.errors import UserError
from conveyor.launch.sweep import Sweep, run

pytest.importorskip("optuna", reason="an extra")

OPTIONS = {
    "data": "digits", "model": "resnet8", "epochs": 2, "max_train_images": 64, "max_validation_images": 30, "threads": 1,
    "layout": "1x1", "report": False, "tensorboard": False,
}  # fmt: skip


def write(path: Path, **changes: Any) -> Path:
    search = {"learning_rate": {"low": 0.001, "high": 1.0, "log": True}, "optimizer": ["momentum", "adam"]}
    path.write_text(json.dumps({"options": OPTIONS, "search": search, "trials": 2, **changes}))
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "magic"}, "method cannot be 'magic'"),
        ({"trials": "many"}, "trials is 'many', but should be a whole number"),
        ({"seeds": 0}, "seeds is 0; the smallest value is 1"),
        ({"prune": "perhaps"}, "prune is 'perhaps', but should be true or false"),
        ({"options": 5}, "options should hold"),
        ({"search": {"learning_rate": {"low": 1, "high": 2, "lag": True}}}, "log"),
        ({"search": {}}, "searches nothing"),
        ({"search": {"learnin_rate": [1]}}, "learning_rate"),
        ({"search": {"learning_rate": {"low": 1}}}, "low and high"),
        ({"search": {"learning_rate": ["fast"]}}, "learning_rate"),
        ({"method": "grid"}, "a grid needs a list"),
        ({"trails": 3}, "trials"),
        ({"options": {**OPTIONS, "seed": 3}}, "seed is the sweep's own: give seeds"),
        ({"search": {"seed": [0, 1]}}, "seed is the sweep's own: give seeds"),
        ({"options": {**OPTIONS, "run_dir": "here"}}, "run_dir is the sweep's own: give out"),
    ],
)
def test_a_mistake_is_found_before_the_first_run(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("_", "[-_]")):
        Sweep.read(write(tmp_path / "sweep.yml", **changes))


@pytest.mark.parametrize(
    "bounds", [{"low": 1, "high": 0.1}, {"low": 0, "high": 1, "log": True}, {"low": 0.1, "high": 1, "step": 0}]
)
def test_bounds_that_cannot_be_searched_are_one_sentence(tmp_path: Path, bounds: dict[str, Any]) -> None:
    file = write(tmp_path / "sweep.yml", search={"learning_rate": bounds}, out=str(tmp_path / "out"))
    with pytest.raises(UserError, match="learning_rate cannot be searched so"):
        run(Sweep.read(file), print)
    assert not (tmp_path / "out").exists()


def test_a_trial_that_was_given_up_is_not_among_the_finished_ones(tmp_path: Path) -> None:
    import optuna

    sweep = Sweep.read(write(tmp_path / "sweep.yml", search={"learning_rate": [0.1, 0.2, 0.3], "optimizer": ["adam"]}))
    study = optuna.create_study(direction="maximize")
    for number in range(3):
        trial = study.ask()
        sweep.value_of(trial, "learning_rate")
        sweep.value_of(trial, "optimizer")
        trial.report(50.0 + number, 1)
        if number == 2:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            trial.set_user_attr("results", [60.0 + number])
            study.tell(trial, 60.0 + number)
    lines, context = summary(sweep, study)
    assert [line.split()[0] for line in lines[1:3]] == ["1", "0"]
    assert [line.split()[2] for line in lines[:2]] == ["optimizer", "adam"]
    assert "1 given up early" in context["subtitle"]
    assert len(context["comparison"]["rows"]) == 3


@pytest.mark.parametrize("method", ["grid", "random"])
def test_a_report_makes_no_trial_and_goes_on_with_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    import optuna

    file = write(tmp_path / "s.yml", search={"learning_rate": [0.1]}, method=method, out=str(tmp_path / "out"))
    assert cli.main(["sweep", str(file), "--report-only"]) == 0
    assert not list((tmp_path / "out").glob("trial-*"))
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "out" / "journal.log"))
    study = optuna.load_study(study_name="sweep", storage=optuna.storages.JournalStorage(backend))
    trial = study.ask()
    Sweep.read(file).value_of(trial, "learning_rate")
    trial.set_user_attr("results", [60.0])  # killed before it was told
    capsys.readouterr()
    assert cli.main(["sweep", str(file), "--report-only"]) == 0
    assert "not finished" in capsys.readouterr().out
    assert not list((tmp_path / "out").glob("trial-*"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"options": {**OPTIONS, "epochs": 3}}, "other options"),
        ({"search": {"learning_rate": [0.2]}}, "other search"),
        ({"seeds": 2, "metric": "loss"}, "other seeds and metric"),
    ],
)
def test_a_sweep_whose_file_has_changed_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """Its trials would stand in one table with others; more trials of the same are no change."""
    words: dict[str, Any] = {"search": {"learning_rate": [0.1]}, "out": str(tmp_path / "out")}
    assert cli.main(["sweep", str(write(tmp_path / "s.yml", **words)), "--report-only"]) == 0
    assert cli.main(["sweep", str(write(tmp_path / "s.yml", **words, trials=9)), "--report-only"]) == 0
    with pytest.raises(UserError, match=said):
        run(Sweep.read(write(tmp_path / "s.yml", **{**words, **changes})), print)


def test_a_grid_is_not_shortened_by_a_number_of_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "s.yml", search={"learning_rate": [0.1]}, method="grid", out=str(tmp_path / "out"))
    assert cli.main(["sweep", str(file), "--trials", "3"]) == 2
    assert "a grid tries every combination" in capsys.readouterr().err


def trials(out: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(out)): {k: v for k, v in json.loads(path.read_text()).items() if k != "run_dir"}
        for path in sorted(out.glob("trial-*/seed-*.yml"))
    }


def test_the_whole_sentence_of_a_run_that_failed_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the run would have folded it."""
    monkeypatch.setenv("COLUMNS", "60")
    options = {**OPTIONS, "class_weights": str(tmp_path / "absent.csv")}
    assert cli.main(["sweep", str(write(tmp_path / "s.yml", options=options, out=str(tmp_path / "out")))]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "failed with code 2: conveyor: error: --class-weights" in said
    assert "there is nothing at this path" in said


@pytest.mark.conformance
def test_a_killed_sweep_makes_the_trials_of_an_undisturbed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert cli.main(["sweep", str(write(tmp_path / "a.yml", out=str(whole), seeds=2))]) == 0
    printed = capsys.readouterr().out
    assert "paired seeds" in printed
    command = [sys.executable, "-m", "conveyor", "sweep", str(write(tmp_path / "b.yml", out=str(killed), seeds=2))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        deadline = time.monotonic() + 200
        while not (killed / "trial-0000" / "seed-0" / "options.yml").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        job.send_signal(signal.SIGKILL)
    assert cli.main(["sweep", str(tmp_path / "b.yml")]) == 0, "its run ended with it, and does not hold its folder"
    assert trials(killed) == trials(whole)
    for path in whole.glob("trial-*/seed-*/checkpoints/*/model.safetensors"):
        assert (killed / path.relative_to(whole)).read_bytes() == path.read_bytes()
    assert (killed / "sweep.html").is_file()


@pytest.mark.conformance
@pytest.mark.timeout(1200)
def test_a_grid_over_runs_of_two_workers_gives_up_the_hopeless_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every point of the grid in turn; after three trials one that learns nothing is ended by its first validations."""
    out = tmp_path / "grid"
    options = {**OPTIONS, "layout": "2x1", "accumulation": 2, "micro_batch_size": 8, "epochs": 30}
    search = {"learning_rate": [0.05, 0.1, 0.02, 0.0], "nesterov": [True]}
    file = write(tmp_path / "grid.yml", options=options, search=search, method="grid", prune=True, out=str(out))
    assert cli.main(["sweep", str(file)]) == 0
    printed = capsys.readouterr().out
    tried = [json.loads((out / f"trial-{number:04d}" / "seed-0.yml").read_text()) for number in range(4)]
    assert [one.get("learning_rate", 0.1) for one in tried] == [0.05, 0.1, 0.02, 0.0]
    for number in range(3):
        run = out / f"trial-{number:04d}" / "seed-0"
        assert json.loads((run / "spec.json").read_text())["layout"] == "2x1"
        assert json.loads((run / "result.json").read_text())["reason"] == "done"
    assert "trial 3: learning_rate 0.0, nesterov True: given up early" in printed
    assert "given up early" in (out / "sweep.html").read_text()
    assert cli.main(["sweep", str(file)]) == 0, "a finished sweep makes no further trial"
    assert not (out / "trial-0004").exists()
