"""The commands train, restore, validate and average, as a user types them."""

import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from tests.training.runs import assert_same_bits, checkpoint, names, small_options, train

from conveyor.checkpoint import choice, store
from conveyor.checkpoint import folder as one
from conveyor.infer.load import load

Command = Callable[..., tuple[int, str, str]]

SMALL = small_options(updates=6, updates_per_checkpoint=2).command()[2:]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "finished"
    train(run, updates=6, updates_per_checkpoint=2)
    return run


def test_a_dry_run_prints_the_plan(conveyor: Command, tmp_path: Path) -> None:
    code, out, _ = conveyor("train", "--dry-run", "--data", "imagenet", "--data-dir", "absent", "--model", "resnet50")
    assert code == 0
    assert "1,281,167" in out
    code, out, _ = conveyor("train", "--dry-run", "--json", "--data", "cifar10", "--accumulation", "8")
    assert json.loads(out)["global_batch"] == 256
    code, out, _ = conveyor("train", "--dry-run", "--plot", str(tmp_path / "lr.png"), "--warmup", "2ep")
    assert (tmp_path / "lr.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["absent/lr.png", "lr.word"])
def test_a_picture_that_cannot_be_drawn_is_one_sentence(conveyor: Command, tmp_path: Path, name: str) -> None:
    code, _, err = conveyor("train", "--dry-run", "--plot", tmp_path / name)
    assert (code, "cannot draw" in err) == (2, True)


def test_a_dry_run_needs_no_torch(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python(
        "import sys; from conveyor.cli import main; main(['train', '--dry-run', '--json']); assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr


def test_train_then_restore_goes_on_to_a_later_end(conveyor: Command, tmp_path: Path) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    words = [*SMALL, "--lr-schedule", "constant"]
    assert conveyor("train", *words, "--run-dir", run, "--updates", "3")[0] == 0
    code, out, err = conveyor("restore", "--checkpoint-path", run, "--updates", "6")
    assert code == 0, err
    assert str(run) in out
    assert conveyor("train", *words, "--run-dir", whole)[0] == 0
    assert_same_bits(checkpoint(whole, 6), checkpoint(run, 6))


def test_restore_refuses_to_change_the_past(conveyor: Command, finished: Path) -> None:
    for words in (["--learning-rate", "0.5"], ["--run-dir", "elsewhere"], ["--logs-per-epoch", "2"], ["--epochs", "9"]):
        code, _, err = conveyor("restore", "--checkpoint-path", finished, "--dry-run", *words)
        assert code == 0, err
    for words in (["--micro-batch-size", "4"], ["--seed", "3"], ["--optimizer", "sgd"]):
        code, _, err = conveyor("restore", "--checkpoint-path", finished, *words)
        assert code == 2
        assert words[0] in err
        assert "already computed" in err


def test_restore_of_an_older_checkpoint_branches_off(conveyor: Command, finished: Path) -> None:
    before = names(finished)
    code, _, err = conveyor("restore", "--checkpoint-path", finished / "checkpoints" / "2")
    assert code == 0, err
    branch = finished.with_name("finished-from-2")
    assert names(finished) == before
    assert_same_bits(checkpoint(finished, 6), checkpoint(branch, 6))


def test_restore_of_nothing_is_one_sentence(conveyor: Command, tmp_path: Path) -> None:
    for words in ([], ["--checkpoint-path", str(tmp_path / "absent")], ["--checkpoint-path", str(tmp_path)]):
        code, _, err = conveyor("restore", *words)
        assert code == 2
        assert err.startswith("conveyor: error:")
        assert len(err.splitlines()) == 1


def test_resume_auto_starts_and_goes_on(conveyor: Command, tmp_path: Path, finished: Path) -> None:
    run = tmp_path / "run"
    words = [*SMALL, "--run-dir", run, "--resume", "auto"]
    assert conveyor("train", *words, "--max-time", "0s")[0] == 0
    assert names(run) == ["1"]
    assert conveyor("train", *words)[0] == 0
    assert_same_bits(checkpoint(finished, 6), checkpoint(run, 6))
    code, out, _ = conveyor("train", *words)
    assert code == 0
    assert "6 updates" in out


@pytest.mark.parametrize(
    ("option", "value"), [("--seed", "5"), ("--precision", "16.16"), ("--shuffle", "none"), ("--micro-batch-size", "4")]
)
def test_resume_auto_refuses_what_restore_refuses(conveyor: Command, finished: Path, option: str, value: str) -> None:
    words = [*SMALL, "--run-dir", finished, "--resume", "auto"]
    said = []
    for command in (
        ("train", *words, option, value),
        ("train", *words, option, value, "--dry-run"),
        ("restore", "--checkpoint-path", finished, option, value),
    ):
        code, _, err = conveyor(*command)
        assert code == 2
        said.append(err)
    assert said[0] == said[1] == said[2]
    assert f"{option} {value} would change what the run has already computed (it was " in said[0]
    assert conveyor("train", *words, "--dry-run")[0] == 0


def test_a_run_is_stored_as_it_was_asked_for_and_opens_on_fewer_cores(tmp_path: Path) -> None:
    """Two lanes were used for `auto`; one core validates, with any number of workers, and goes on."""
    run = tmp_path / "run"

    def on(cores: int, *words: object) -> str:
        chosen = sorted(os.sched_getaffinity(0))[:cores]
        command = [sys.executable, "-m", "conveyor", *map(str, words), "--run-dir", str(run)]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            preexec_fn=lambda: os.sched_setaffinity(0, chosen),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    small = small_options(updates=2, updates_per_checkpoint=2, accumulation=2, layout="auto").command()[2:]
    on(2, "train", *small)
    used = json.loads((run / "spec.json").read_text())["layout"]
    assert used == f"{min(2, len(os.sched_getaffinity(0)))}x1"
    assert "layout: auto\n" in (run / "options.yml").read_text()
    assert one.load(run / "checkpoints" / "2").options["layout"] == "auto"
    assert "\n2 " in on(1, "validate", "--checkpoint-path", run, "--layout", "2x1", "--accumulation", 1)
    on(1, "restore", "--checkpoint-path", run, "--updates", "3")
    assert json.loads((run / "spec.json").read_text())["layout"] == "1x1"


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


def test_repeat_is_refused_in_training(conveyor: Command, tmp_path: Path) -> None:
    for switch in ([], ["--dry-run"]):
        code, _, err = conveyor("train", *SMALL, "--run-dir", tmp_path / "run", "--repeat", "3", *switch)
        assert code == 2
        assert "--repeat has no effect in training: it repeats a validation, as in conveyor validate" in err
    assert not (tmp_path / "run").exists()


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


def test_an_average_is_the_mean_in_double_precision(conveyor: Command, finished: Path, tmp_path: Path) -> None:
    target = tmp_path / "mean"
    code, out, _ = conveyor("average", "--checkpoint-path", finished, "--output", target)
    assert code == 0
    assert "3 checkpoints (2, 4, 6)" in out
    states = [checkpoint(finished, update).model for update in (2, 4, 6)]
    expected = (torch.stack([state["conv1.weight"].double() for state in states]).mean(0)).float()
    assert torch.equal(one.load(target).model["conv1.weight"], expected)
    code, _, _ = conveyor(
        "average", "--checkpoint-path", finished, "--mode", "exponential", "--decay", "0.5", "--output", target
    )
    w = [state["conv1.weight"].double() for state in states]
    exponential = (0.5 * (0.5 * w[0] + 0.5 * w[1]) + 0.5 * w[2]).float()
    torch.testing.assert_close(one.load(target).model["conv1.weight"], exponential, rtol=0.0, atol=0.0)
    code, _, err = conveyor("average", "--checkpoint-path", finished, "--last", "9")
    assert code == 2
    assert "has 3" in err


def test_statistics_of_an_average_can_be_taken_anew(conveyor: Command, finished: Path, tmp_path: Path) -> None:
    words = ["average", "--checkpoint-path", finished, "--output"]
    assert conveyor(*words, tmp_path / "old")[0] == 0
    assert conveyor(*words, tmp_path / "new", "--recompute-statistics", "5")[0] == 0
    old, new = one.load(tmp_path / "old").model, one.load(tmp_path / "new").model
    assert torch.equal(old["conv1.weight"], new["conv1.weight"])
    assert not torch.equal(old["bn1.running_mean"], new["bn1.running_mean"])


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def test_statistics_may_take_more_batches_than_the_run_had(conveyor: Command, finished: Path, tmp_path: Path) -> None:
    words = ["average", "--checkpoint-path", finished, "--output", tmp_path / "mean", "--recompute-statistics"]
    code, _, err = conveyor(*words, 9)
    assert code == 0, err
    code, _, err = conveyor(*words, 0)
    assert (code, "at least 1" in err) == (2, True)


def test_an_average_that_cannot_be_written_is_one_sentence(conveyor: Command, finished: Path) -> None:
    code, _, err = conveyor("average", "--checkpoint-path", finished, "--output", "/proc/nothing/here")
    assert code == 2
    assert "cannot write the average to /proc/nothing/here" in err


@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
@pytest.mark.parametrize("name", ["evil.pt", "evil.pth", "evil.safetensors", "evil.bin", "evil"])
def test_a_hostile_file_is_refused_wherever_one_is_accepted(conveyor: Command, tmp_path: Path, name: str) -> None:
    mark, evil = tmp_path / "executed", tmp_path / name
    torch.save({"conv1.weight": Hostile(mark)}, tmp_path / "archive")
    for content in (pickle.dumps(Hostile(mark)), (tmp_path / "archive").read_bytes()):
        evil.write_bytes(content)
        for command in (
            ["train", *SMALL, "--run-dir", tmp_path / "a", "--weights", evil],
            ["train", *SMALL, "--run-dir", tmp_path / "b", "--checkpoint-path", evil],
            ["validate", *SMALL, "--run-dir", tmp_path / "c", "--checkpoint-path", evil],
            ["restore", "--checkpoint-path", evil],
            ["average", "--checkpoint-path", evil],
        ):
            code, _, err = conveyor(*command)
            assert code == 2, (command, err)
            assert "Traceback" not in err
            assert "weights_only" not in err, "advice to run the file's code"
            assert not mark.exists(), command


def start(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "conveyor", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that a shell runs in the background would hand on that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    assert path.exists(), process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_leaves(tmp_path: Path, conveyor: Command, number: signal.Signals) -> None:
    run = tmp_path / "run"
    words = [
        *small_options(updates=4000, updates_per_checkpoint=3, validation=False, quiet=False).command()[2:],
        "--run-dir",
        run,
    ]
    process = start("train", *words)
    try:
        wait_for(run / store.CHECKPOINTS / "3", process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, err
    assert f"{number.name}: stopped after update" in out
    assert f"conveyor restore --checkpoint-path {run}" in out
    last = int(names(run)[-1])
    assert f"after update {last}, saved" in out
    code, _, err = conveyor("restore", "--checkpoint-path", run, "--max-time", "0s")
    assert code == 0, err
    assert names(run)[-1] == str(last + 1)


def test_a_full_disk_is_told_and_harms_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: the optimiser's file no longer fits."""
    train(tmp_path / "run", updates=2, updates_per_checkpoint=1, validation=False)
    size = (tmp_path / "run" / store.CHECKPOINTS / "2" / "optimizer.safetensors").stat().st_size
    words = small_options(tmp_path / "run", updates=4, updates_per_checkpoint=1, validation=False).command()[2:]
    process = subprocess.run(
        [sys.executable, "-m", "conveyor", "train", *words, "--resume", "auto"],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, size - 1)),
    )
    assert process.returncode == 2, process.stderr
    assert "was not written" in process.stderr
    assert "earlier checkpoints are intact" in process.stderr
    assert "Traceback" not in process.stderr
    assert names(tmp_path / "run") == ["1", "2"]
    checkpoint(tmp_path / "run", 2)
    leftovers = [path.name for path in (tmp_path / "run" / store.CHECKPOINTS).iterdir() if path.name.startswith(".")]
    assert leftovers == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_validation_ends_when_it_is_told_to(finished: Path, tmp_path: Path, number: signal.Signals) -> None:
    """There is nothing to save: the first signal is the last."""
    words = ["--checkpoint-path", finished, "--repeat", 100_000, "--run-dir", tmp_path / "out", "--no-quiet"]
    process = start("validate", *words)
    try:
        # By the work it has done, whatever else the machine does.
        end = time.monotonic() + 120
        while (
            process.poll() is None and sum(psutil.Process(process.pid).cpu_times()[:2]) < 8 and time.monotonic() < end
        ):
            time.sleep(0.05)
        assert process.poll() is None, process.communicate()
        process.send_signal(number)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode in (-signal.SIGTERM, 130)


def test_a_full_disk_costs_log_lines_and_not_the_run(tmp_path: Path) -> None:
    """metrics.csv reaches the limit on the size of files after some 60 of 150 lines; no half line stays."""
    run = tmp_path / "run"
    words = small_options(run, updates=150, updates_per_log=1, checkpoints_per_epoch=0, validation=False).command()[2:]
    process = subprocess.run(
        [sys.executable, "-m", "conveyor", "train", *words],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000)),
    )
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr
    assert process.stderr.count("CsvWriter cannot write") == 1
    assert "done: 150 updates" in process.stdout
    lines = (run / "metrics.csv").read_text().splitlines(keepends=True)
    assert 10 < len(lines) < 140
    assert {line.count(",") for line in lines} == {lines[0].count(",")}
    assert lines[-1].endswith("\n")


@pytest.mark.parametrize("place", ["a file", "/proc/nothing"])
def test_a_run_folder_that_cannot_be_written_is_one_sentence(conveyor: Command, tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").touch()
    code, _, err = conveyor("train", *SMALL, "--run-dir", tmp_path / place)
    assert code == 2
    assert "cannot write to the run folder" in err
    assert "Traceback" not in err


def test_a_run_with_damaged_checkpoints_only_is_not_a_success(conveyor: Command, tmp_path: Path) -> None:
    train(tmp_path / "run", updates=4, updates_per_checkpoint=2, validation=False)
    for name in names(tmp_path / "run"):
        with (tmp_path / "run" / store.CHECKPOINTS / name / "manifest").open("a") as file:
            file.write("x")
    code, _, err = conveyor("validate", "--checkpoint-path", tmp_path / "run", "--run-dir", tmp_path / "out")
    assert code == 2
    assert "all 2 of them are damaged" in err


def test_a_refused_restore_leaves_the_stored_options(conveyor: Command, tmp_path: Path) -> None:
    train(tmp_path / "run", updates=4, validation=False)
    before = (tmp_path / "run" / "options.yml").read_bytes()
    code, _, err = conveyor("restore", "--checkpoint-path", tmp_path / "run", "--updates", "2")
    assert (code, "past the end" in err) == (2, True)
    assert (tmp_path / "run" / "options.yml").read_bytes() == before


def test_weights_that_are_not_finite_have_no_accuracy(
    tmp_path: Path, conveyor: Callable[..., tuple[int, str, str]]
) -> None:
    """Neither 0 % nor nan: the one that is asked for is refused by name, of several it is passed over."""
    run = tmp_path / "run"
    train(run, checkpoints_per_epoch=1)
    good, bad = store.numbered(run)
    state = one.load(bad)
    name = next(iter(state.model))
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
