"""`conveyor runs`: what is deleted, and what is not."""

import shutil
from pathlib import Path

import pytest
from tests.commands.typed import SMALL, Command

from conveyor.monitor.run_files import others


def test_only_what_the_run_wrote_is_deleted(
    conveyor: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    home = tmp_path / "home"
    shutil.copytree(finished, home)
    assert others(home) == []
    (home / "thesis.txt").write_text("years of work", encoding="utf-8")
    monkeypatch.chdir(home)
    code, out, _ = conveyor("runs", ".", "--delete", "--yes")
    assert (code, "the folder stays, for there are other files in it (thesis.txt)" in out) == (0, True)
    assert [entry.name for entry in home.iterdir()] == ["thesis.txt"]


def test_the_folder_that_the_user_is_in_stays(
    conveyor: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    code, out, _ = conveyor("runs", ".", "--delete", "--yes")
    assert (code, "you are in it" in out, list((tmp_path / "run").iterdir())) == (0, True, [])


def test_the_end_of_the_input_is_no_answer(
    conveyor: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    def end(question: str) -> str:
        raise EOFError

    shutil.copytree(finished, tmp_path / "run")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", end)
    code, out, _ = conveyor("runs", tmp_path / "run", "--delete")
    assert (code, "nothing was deleted" in out, (tmp_path / "run" / "options.yml").exists()) == (0, True, True)


def test_a_link_to_a_run_is_deleted_with_it(conveyor: Command, tmp_path: Path, finished: Path) -> None:
    shutil.copytree(finished, tmp_path / "runs" / "one")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "one").symlink_to("../runs/one")
    assert conveyor("runs", tmp_path / "links", tmp_path / "runs", "--delete", "--yes")[0] == 0
    assert [*(tmp_path / "links").iterdir(), *(tmp_path / "runs").iterdir()] == []


def test_a_run_beside_other_files_says_so_and_writes_over_none(conveyor: Command, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work", encoding="utf-8")
    words = [word for word in SMALL if word != "--quiet"]
    code, out, _ = conveyor("train", *words, "--updates", "1", "--run-dir", home)
    assert (code, "holds other files too (thesis.txt): the run leaves them alone" in out) == (0, True)
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "log.txt").write_text("mine", encoding="utf-8")
    for more in ([], ["--resume", "auto"]):
        code, _, err = conveyor("train", *words, "--run-dir", taken, *more)
        assert (code, "holds no run, but log.txt, where a run would write" in err) == (2, True)
    assert (taken / "log.txt").read_text(encoding="utf-8") == "mine"
