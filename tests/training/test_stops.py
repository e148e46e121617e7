"""A run that is stopped and goes on: in order to be started again without a trace, or by a signal, with one row more."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from tests.exact import differences

from conveyor.monitor.csvfile import read_rows
from conveyor.options import Options
from conveyor.run import worker
from conveyor.spec import resolve
from conveyor.training import handover
from conveyor.training.update import Updater
from conveyor.world.restarts import StartedAgain

OPTIONS = Options().replace(
    updates=12, updates_per_epoch=6, updates_per_log=5, updates_per_checkpoint=4, micro_batch_size=4, accumulation=4,
    max_validation_images=30, tensorboard=False, quiet=True, device="cpu", threads=1, layout="1x1", ema_decay=0.9,
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the launcher makes for its workers."""
    (tmp_path / "memory").mkdir()
    monkeypatch.setenv(handover.VARIABLE, str(tmp_path / "memory"))


def train(folder: Path, *, goes_on: bool = False) -> None:
    worker.run(resolve(OPTIONS.replace(run_dir=str(folder), resume="auto" if goes_on else "no")))


def stopped(folder: Path, update: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM comes in the midst of the update before `update`, which is therefore the last one."""
    apply = Updater.apply

    def with_signal(self: Updater, number: int, rate: float) -> None:
        if number == update - 2:
            os.kill(os.getpid(), signal.SIGTERM)
        apply(self, number, rate)

    with monkeypatch.context() as patch:
        patch.setattr(Updater, "apply", with_signal)
        train(folder)


@pytest.mark.parametrize("update", [4, 5, 6, 7, 12])
def test_a_stop_to_start_again_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    """Between events, and where a log point, a validation, a checkpoint or the end of the run are due."""
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    handover.announce_start()
    with pytest.raises(StartedAgain):
        stopped(disturbed, update, monkeypatch)
    handover.withdraw_start()
    assert not (disturbed / "checkpoints" / str(update)).exists()
    monkeypatch.setenv("CONVEYOR_STARTS", "1")
    train(disturbed, goes_on=True)
    monkeypatch.delenv("CONVEYOR_STARTS")
    train(undisturbed)
    assert differences(disturbed, undisturbed) == []
    assert '"updates_repeated": 0' in (disturbed / "result.json").read_text()


def test_a_state_that_nobody_takes_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    handover.announce_start()
    with pytest.raises(StartedAgain):
        stopped(disturbed, 7, monkeypatch)
    handover.withdraw_start()
    assert handover.keep() == disturbed / "checkpoints" / "7"
    assert handover.keep() is None, "the run has it now"
    train(disturbed, goes_on=True)
    train(undisturbed)
    shutil.rmtree(disturbed / "checkpoints" / "7")
    assert differences(disturbed, undisturbed) == []


def test_a_stop_that_was_asked_for_adds_a_row_and_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    stopped(disturbed, 7, monkeypatch)
    train(disturbed, goes_on=True)
    train(undisturbed)
    rows = read_rows(disturbed / "metrics.csv")
    assert [row["update"] for row in rows] == ["5", "7", "10", "12"]
    lines = (disturbed / "metrics.csv").read_text().splitlines(keepends=True)
    (disturbed / "metrics.csv").write_text("".join([*lines[:2], *lines[3:]]))
    shutil.rmtree(disturbed / "checkpoints" / "7")
    assert differences(disturbed, undisturbed) == []
