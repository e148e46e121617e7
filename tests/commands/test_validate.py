"""`conveyor validate` as a user types it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.commands.typed import SMALL, Command
from tests.run.runs import checkpoint, names, train

from conveyor.checkpoint import choice, store
from conveyor.checkpoint import folder as one
from conveyor.infer.load import load


def test_a_validation_needs_nothing_that_training_needs(conveyor: Command, tmp_path: Path) -> None:
    """Options that a training refuses, stored or given: an end that cannot be logged, lanes without work, no images."""
    train(tmp_path / "run", updates=2, updates_per_checkpoint=2, replicas=2, bn_span=2, global_batch_size=32)
    words = [
        "--global-batch-size",
        "100000",
        "--epochs",
        "5",
        "--logs-per-epoch",
        "1/2",
        "--bn-span",
        "2",
        "--replicas",
        "3",
    ]
    out = ["--run-dir", tmp_path / "out"]
    code, said, err = conveyor("validate", "--checkpoint-path", tmp_path / "run", *words, *out)
    assert code == 0, err
    assert "\n2 " in said
    assert "--global-batch-size, --epochs, --logs-per-epoch, --bn-span: a validation makes no updates" in err


def test_validate_gives_the_accuracy_of_training_for_every_checkpoint(
    conveyor: Command, finished: Path, tmp_path: Path
) -> None:
    averaged = conveyor("average", "--checkpoint-path", finished, "--last", "2", "--mode", "mean")
    assert averaged[0] == 0
    code, out, err = conveyor("validate", "--checkpoint-path", finished, "--run-dir", tmp_path, "--json-logs")
    assert code == 0, err
    records = json.loads(out.splitlines()[-1])
    assert [record["name"] for record in records] == ["2", "4", "6", "average-last-2"]
    assert [record["images"] for record in records] == [30] * 4
    assert (tmp_path / "validation.csv").exists()
    stored = checkpoint(finished, 6).progress["last_accuracy"]
    assert records[2]["accuracy"] == stored
    one_name = conveyor(
        "validate", "--checkpoint-path", finished / "checkpoints" / "4", "--run-dir", tmp_path, "--repeat", "2"
    )
    lines = [line for line in one_name[1].splitlines() if line.startswith("4 ")]
    assert len(lines) == 2


def test_random_weights_are_validated_and_the_first_line_says_so(
    conveyor: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = [*SMALL, "--run-dir", tmp_path / "out"]
    for command in (["validate", *words], ["train", *words, "--no-training"]):
        code, out, _ = conveyor(*command)
        assert code == 0
        assert out.splitlines()[0] == "random weights are validated: no checkpoint is given"
        assert out.count("random weights") == 1
        assert "random weights" not in caplog.text
    code, out, err = conveyor("validate", *words, "--json")
    assert code == 0
    assert err.splitlines()[0] == "random weights are validated: no checkpoint is given"
    assert json.loads(out)[0]["name"] == "random"


def test_a_validation_makes_its_folder(
    conveyor: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, _ = conveyor("validate", "--checkpoint-path", finished, "--checkpoint", "last")
    assert code == 0
    assert len(list(tmp_path.glob("runs/validation-*/validation.csv"))) == 1
    code, _, _ = conveyor("average", "--checkpoint-path", finished, "--output", tmp_path / "new" / "deep" / "mean")
    assert code == 0
    assert (tmp_path / "new" / "deep" / "mean" / "manifest").is_file()


def test_a_run_with_damaged_checkpoints_only_is_not_a_success(conveyor: Command, tmp_path: Path) -> None:
    train(tmp_path / "run", updates=4, updates_per_checkpoint=2, validation=False)
    for name in names(tmp_path / "run"):
        with (tmp_path / "run" / store.CHECKPOINTS / name / "manifest").open("a") as file:
            file.write("x")
    code, _, err = conveyor("validate", "--checkpoint-path", tmp_path / "run", "--run-dir", tmp_path / "out")
    assert code == 2
    assert "all 2 of them are damaged" in err


def test_weights_that_are_not_finite_have_no_accuracy(
    tmp_path: Path, conveyor: Callable[..., tuple[int, str, str]]
) -> None:
    """Neither 0 % nor nan: the one that is asked for is refused by name, of several it is passed over."""
    run = tmp_path / "run"
    train(run, checkpoints_per_epoch=1)
    good, bad = store.numbered(run)
    state = one.load(bad)
    name = next(name for name, tensor in state.model.items() if tensor.is_floating_point())
    state.model[name].view(-1)[0] = float("nan")
    one.remove(bad)
    one.save(bad, state)
    code, _, err = conveyor("validate", "--checkpoint-path", bad)
    assert code == 2
    assert f"its {name} holds values that are not" in err
    code, out, _ = conveyor("validate", "--checkpoint-path", run, "--json")
    assert [record["name"] for record in json.loads(out)] == [good.name]
    code, _, err = conveyor("export", bad, "--out", tmp_path / "out")
    assert code == 2
    assert f"are not finite ({name})" in err


def test_the_same_checkpoint_is_shown_and_delivered(conveyor: Command, tmp_path: Path, finished: Path) -> None:
    """The default of every command is the last one, said by its number; --checkpoint best is another for all of them."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    choice.write_best(run, 4, 77.77)
    (run / "validation.csv").write_text("name,update,epoch,accuracy\n4,4,1,77.77\n6,6,1.5,55.55\n")
    for which, update, accuracy in ((None, "6", "55.55 %"), ("last", "6", "55.55 %"), ("best", "4", "77.77 %")):
        words = [] if which is None else ["--checkpoint", which]
        assert load(run, which).spec["checkpoint"] == update
        code, out, _ = conveyor("export", run, "--out", tmp_path / f"{which}", "--format", "torch", *words)
        assert (code, f"checkpoint {update} of run" in out, accuracy in out) == (0, True, True)
        assert load(tmp_path / f"{which}").spec["checkpoint"] == update
        page = tmp_path / f"{which}.html"
        assert conveyor("report", run, "--output", page, *words)[0] == 0
        assert f"<b>{accuracy}</b><span>{which or 'last'} checkpoint (update {update}" in page.read_text()
    code, out, err = conveyor("validate", "--checkpoint-path", run, "--checkpoint", "best", "--json")
    assert [record["name"] for record in json.loads(out)] == ["4"]
    assert "checkpoint 4 of run, the best" in err
    code, out, _ = conveyor("validate", "--checkpoint-path", run)
    assert "serve, load and export take checkpoint 6 of run, the last" in out
    assert json.loads((run / "confusion.json").read_text())["update"] == 6
    assert "Of the weights after update 6" in (tmp_path / "best.html").read_text()
    for words in (["validate", "--checkpoint", "best"], ["report", run, run, "--checkpoint", "best"]):
        assert conveyor(*words)[0] == 2
