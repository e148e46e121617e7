"""`conveyor train` as a user types it: plans, runs that go on, signals, full disks, hostile files."""

import json
import os
import pickle
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.commands.typed import SMALL, Command, start, wait_for
from tests.run.runs import assert_same_bits, checkpoint, names, small_options, train

from conveyor.checkpoint import folder as one
from conveyor.checkpoint import store


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


def test_a_dry_run_under_a_launcher_is_told_once_with_its_workers(
    conveyor: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told by every worker, with the layout of a run without a launcher."""
    for name, value in {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    told = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        code, out, err = conveyor("train", "--dry-run", "--accumulation", "4")
        assert code == 0, err
        told.append(out)
    assert "4x1" in told[0]
    assert told[1] == ""


def test_commands_to_copy_name_a_folder_with_spaces_as_one_word(
    conveyor: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = "my runs/a run with a name that is longer than the lines of a narrow terminal"
    _, out, err = conveyor("train", *SMALL, "--no-quiet", "--max-time", "0s", "--run-dir", run)
    line = next((line for line in out.splitlines() if "go on with" in line), err)
    _, out, err = conveyor(*shlex.split(line.rpartition(" conveyor ")[2]), "--max-time", "1h")
    assert f"next: conveyor predict '{run}' PHOTO" in out, err


def test_resume_without_a_folder_is_told_that_it_begins_anew(conveyor: Command) -> None:
    note = "--resume auto begins a new run: give the --run-dir"
    assert note in " ".join(conveyor("train", "--dry-run", "--resume", "auto")[2].split())
    assert note not in " ".join(conveyor("train", "--dry-run", "--resume", "auto", "--run-dir", "absent")[2].split())


def test_a_run_without_a_checkpoint_names_no_command_that_needs_one(conveyor: Command, tmp_path: Path) -> None:
    words = ["--model", "resnet8", "--epochs", 0, "--no-report", "--no-tensorboard", "--run-dir", tmp_path / "run"]
    code, out, err = conveyor("train", *words)
    assert (code, "done: 0 updates" in out, "conveyor predict" in out) == (0, True, False), err


def test_a_dry_run_needs_no_torch(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python(
        "import sys; from conveyor.cli import main; main(['train', '--dry-run', '--json']); assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr


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


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


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
    assert f"conveyor restore {run}" in out
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
    assert f"make room, then conveyor restore {tmp_path / 'run'}" in process.stderr.splitlines()[-1]
    assert "Traceback" not in process.stderr
    assert names(tmp_path / "run") == ["1", "2"]
    checkpoint(tmp_path / "run", 2)
    leftovers = [path.name for path in (tmp_path / "run" / store.CHECKPOINTS).iterdir() if path.name.startswith(".")]
    assert leftovers == []


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


def test_repeat_is_refused_in_training(conveyor: Command, tmp_path: Path) -> None:
    for switch in ([], ["--dry-run"]):
        code, _, err = conveyor("train", *SMALL, "--run-dir", tmp_path / "run", "--repeat", "3", *switch)
        assert code == 2
        assert "--repeat has no effect in training: it repeats a validation, as in conveyor validate" in err
    assert not (tmp_path / "run").exists()
