"""The checkpoints of a run: order, newest complete, keeping, the lock."""

import errno
import fcntl
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.checkpoint.states import make_state, same

from conveyor.checkpoint import choice, store
from conveyor.checkpoint import folder as one
from conveyor.checkpoint.lock import RunLock, is_held
from conveyor.checkpoint.state import State
from conveyor.checkpoint.writer import BackgroundWriter
from conveyor.errors import UserError


def make_run(run: Path, *updates: int) -> Path:
    run.mkdir(exist_ok=True)
    for update in updates:
        one.save(run / store.CHECKPOINTS / str(update), make_state(update))
    return run


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_listing_is_by_update_with_averages_last(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 100, 9, 20)
    one.save(run / store.CHECKPOINTS / "average-last-2", make_state())
    (run / store.CHECKPOINTS / f"{one.TEMPORARY}30-1").mkdir()
    assert names(store.listing(run)) == ["9", "20", "100", "average-last-2"]
    assert names(store.listing(run / store.CHECKPOINTS)) == ["9", "20", "100", "average-last-2"]
    assert store.listing(tmp_path / "nowhere") == []


def test_newest_passes_over_damaged_ones_and_names_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run(tmp_path / "run", 1, 2, 3)
    (run / store.CHECKPOINTS / "3" / "model.safetensors").write_bytes(b"short")
    (run / store.CHECKPOINTS / "2" / "manifest").unlink()
    with caplog.at_level(logging.WARNING):
        path, state = store.load_newest(run)
    assert path.name == "1"
    assert same(state, make_state(1))
    assert "checkpoints/3 is damaged: model.safetensors has 5 bytes" in caplog.text
    assert "checkpoints/2 is damaged" in caplog.text


def test_all_damaged_or_none_is_one_sentence(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 1)
    (run / store.CHECKPOINTS / "1" / "state.json").write_bytes(b"")
    with pytest.raises(UserError, match="no complete checkpoint"):
        store.load_newest(run)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no checkpoint in"):
        store.load_newest(tmp_path / "empty")
    with pytest.raises(UserError, match="nothing at"):
        store.locate(tmp_path / "absent")


def test_locate_understands_all_the_ways_to_name_a_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 5, 6)
    single = run / store.CHECKPOINTS / "5"
    for given in (single, single / "model.safetensors", single / "manifest"):
        found = store.locate(given)
        assert found.single
        assert found.checkpoints == [single]
        assert found.run == run.resolve()
    for given in (run, run / store.CHECKPOINTS):
        found = store.locate(given)
        assert not found.single
        assert names(found.checkpoints) == ["5", "6"]


def test_a_named_checkpoint_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 5, 6)
    (run / store.CHECKPOINTS / "6" / "state.json").write_bytes(b"{}")
    with pytest.raises(one.DamagedError):
        store.load_newest(run / store.CHECKPOINTS / "6")


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 1, 2, 3, 4, 5)
    one.save(run / store.CHECKPOINTS / "average-last-2", make_state())
    choice.write_best(run, 2, 97.5)
    assert store.prune(run, None) == []
    assert names(store.prune(run, 2)) == ["1", "3"]
    assert names(store.listing(run)) == ["2", "4", "5", "average-last-2"]
    assert choice.read_best(run) == (2, 97.5)


def test_the_writer_copies_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    real_save = one.save

    def slow_save(folder: Path, state: State) -> Path:
        assert gate.wait(30)
        return real_save(folder, state)

    monkeypatch.setattr(one, "save", slow_save)
    seen: list[tuple[str, int]] = []
    writer = BackgroundWriter(after=lambda folder, state: seen.append((folder.name, state.update)))
    state = make_state(7)
    writer.save(tmp_path / "7", state)
    for tensor in state.model.values():
        tensor.zero_()
    state.progress["update"] = 99
    assert not (tmp_path / "7").exists()
    gate.set()
    writer.wait()
    assert same(one.load(tmp_path / "7"), make_state(7))
    assert seen == [("7", 7)]
    assert writer.problem is None


def test_at_most_one_checkpoint_is_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = [0], [0]
    real_save = one.save

    def counted(folder: Path, state: State) -> Path:
        running[0] += 1
        most[0] = max(most[0], running[0])
        try:
            return real_save(folder, state)
        finally:
            running[0] -= 1

    monkeypatch.setattr(one, "save", counted)
    writer = BackgroundWriter()
    for update in range(5):
        writer.save(tmp_path / str(update), make_state(update))
    writer.wait()
    assert most == [1]
    assert all(same(one.load(tmp_path / str(update)), make_state(update)) for update in range(5))


def test_a_second_run_on_a_folder_is_refused(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from conveyor.checkpoint.lock import RunLock\n"
    code += "RunLock(Path(sys.argv[1])).acquire()"
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with RunLock(tmp_path / "run"):
        with pytest.raises(UserError, match="in use by process"):
            RunLock(tmp_path / "run").acquire()
        other = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert other.returncode != 0
        assert "in use by process" in other.stderr
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).returncode == 0
    RunLock(tmp_path / "run").acquire().release()


def test_a_file_system_without_locks_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunLock(tmp_path / "run").acquire().release()

    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match=r"No locks available.*choose a --run-dir"):
        RunLock(tmp_path / "run").acquire()
    assert not is_held(tmp_path / "run")


def test_an_export_is_told_from_a_run(tmp_path: Path) -> None:
    (tmp_path / "export.json").write_text("{}")
    with pytest.raises(UserError, match="is an export, for conveyor predict and conveyor serve: give the run"):
        store.existing(tmp_path)
