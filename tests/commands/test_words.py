"""Help, options by word, names of the field, runs: what a person meets on the first day."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conveyor import cli
from conveyor.checkpoint.lock import RunLock
from conveyor.commands import train as train_command
from conveyor.options import Options, find, specs
from conveyor.options.parser import COMMON

Command = Callable[..., tuple[int, str, str]]
SMALL = ("--updates", "2", "--micro-batch-size", "8", "--layout", "1x1", "--max-validation-images", "10", "--no-report")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs in a folder, the second one better trained."""
    folder = tmp_path_factory.mktemp("runs")
    for name, updates in (("short", "1"), ("long", "20")):
        assert cli.main(["train", *SMALL, "--updates", updates, "--run-dir", str(folder / name), "--quiet"]) == 0
    return folder


def test_help_fits_two_screens_and_all_is_there(conveyor: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    short = cli.parser_of("train").format_help()
    assert len(short.splitlines()) <= 80
    assert max(map(len, short.splitlines())) <= 80
    assert set(specs()) >= COMMON
    for name in COMMON:
        assert f"--{name.replace('_', '-')}" in short
    with pytest.raises(SystemExit):
        cli.main(["train", "--help-all"])


def test_help_all_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help-all"])
    shown = capsys.readouterr().out
    assert [spec.flag for spec in specs().values() if spec.flag not in shown] == []


@pytest.mark.parametrize(
    ("name", "meant"), [("lr", "learning_rate"), ("batch-size", "micro_batch_size"), ("wd", "weight_decay")]
)
def test_names_of_the_field_are_understood(name: str, meant: str, conveyor: Command) -> None:
    assert find(name).name == meant
    code, out, err = conveyor("train", f"--{name}", "4", "--dry-run", "--json")
    assert code == 0, err
    assert f"--{meant.replace('_', '-')} 4" in json.loads(out)["command"]


def test_a_name_that_means_several_things_is_answered(conveyor: Command) -> None:
    code, _, err = conveyor("train", "--workers", "4")
    assert code == 2
    assert "here that is --loader-threads" in err


def test_options_are_found_by_name_and_text(conveyor: Command) -> None:
    code, out, _ = conveyor("options", "smoothing")
    assert code == 0
    assert out.startswith("--label-smoothing")
    assert "--smoothing-form" in out
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = conveyor("options", "squared", "average")
    assert "--rmsprop-decay" in out
    code, _, err = conveyor("options", "nonsensical")
    assert code == 2
    assert err.count("\n") == 1


def test_runs_are_listed_sorted_and_filtered(runs: Path, conveyor: Command) -> None:
    code, out, err = conveyor("runs", runs, "--sort", "accuracy", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [one["name"] for one in found] == ["short", "long"]
    assert found[1]["accuracy"] > found[0]["accuracy"]
    assert {(one["model"], one["data"], one["state"]) for one in found} == {("resnet8", "digits", "done")}
    code, out, _ = conveyor("runs", runs, "--filter", "long", "resnet8")
    assert [line.split()[0] for line in out.splitlines()] == ["name", "long"]
    with RunLock(runs / "long"):
        code, out, _ = conveyor("runs", runs / "long", "--json")
        assert json.loads(out)[0]["state"] == "running"
        code, _, err = conveyor("runs", runs, "--delete", "--yes")
        assert code == 2
        assert "long is running" in err
    assert (runs / "short").exists()


def test_runs_are_deleted_with_care(runs: Path, tmp_path: Path, conveyor: Command) -> None:
    (runs / "short").rename(tmp_path / "short")
    code, _, err = conveyor("runs", tmp_path, "--delete")
    assert code == 2
    assert "deleting 1 run needs an answer: add --yes" in err
    assert (tmp_path / "short" / "options.yml").exists()
    code, out, _ = conveyor("runs", tmp_path, "--delete", "--yes")
    assert code == 0
    assert not (tmp_path / "short").exists()
    (tmp_path / "precious").mkdir()
    code, out, _ = conveyor("runs", tmp_path, "--delete", "--yes")
    assert "no run is in" in out
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("command", ["validate", "restore", "average"])
def test_a_run_is_the_first_word(command: str, runs: Path, tmp_path: Path, conveyor: Command) -> None:
    more = {"validate": ("--run-dir", tmp_path / "v"), "average": ("--out", tmp_path / "a"), "restore": ("--dry-run",)}
    code, _, err = conveyor(command, runs / "long", *more[command])
    assert code == 0, err


def test_the_log_holds_what_the_screen_showed(tmp_path: Path, conveyor: Command) -> None:
    code, out, err = conveyor("train", *SMALL, "--run-dir", tmp_path / "run")
    assert code == 0, err
    log = (tmp_path / "run" / "log.txt").read_text().splitlines()
    assert out.splitlines() == log
    assert any(line.startswith("run folder:") for line in log)
    assert "GEMM" not in out
    assert "2 updates" in out
    assert f"conveyor predict {tmp_path / 'run'} PHOTO" in out


def test_a_missing_library_is_one_sentence(conveyor: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_starlette(*_: object) -> int:
        raise ModuleNotFoundError("No module named 'starlette'", name="starlette.applications")

    monkeypatch.setattr(train_command, "run", without_starlette)
    code, _, err = conveyor("train")
    assert code == 2
    assert "needs starlette.applications: pip install 'conveyor[serve]'" in err


def test_a_load_without_the_servers_packages_is_one_sentence(
    runs: Path, conveyor: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = conveyor("request", runs / "long", "--num-images", 1)
    assert code == 2
    assert "conveyor request needs uvicorn: pip install 'conveyor[serve]'" in err
    assert "starting a server" not in err


def test_wandb_without_its_package_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, conveyor: Command
) -> None:
    monkeypatch.setattr("conveyor.spec.checks.find_spec", lambda name: None)
    code, _, err = conveyor("train", *SMALL, "--wandb", "--run-dir", tmp_path / "run")
    assert code == 2
    assert "pip install 'conveyor[track]'" in err
    assert not (tmp_path / "run").exists()


def test_top_5_needs_more_than_five_classes() -> None:
    import torch

    from conveyor.evaluate.accuracy import Accuracy

    few, more = (Accuracy(50.0, 100.0, 4, 1.0, 1.0, confusion=torch.zeros(count, count)) for count in (5, 6))
    assert "accuracy_top5" not in few.record("x", 1, 1.0)
    assert "accuracy_top5" in more.record("x", 1, 1.0)
    assert Options().run.wandb is False
