"""`conveyor restore` as a user types it."""

import shutil
from pathlib import Path

from tests.commands.typed import SMALL, Command
from tests.run.runs import assert_same_bits, checkpoint, names, train

from conveyor.checkpoint import choice


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


def test_restore_takes_the_words_that_choose_a_checkpoint(conveyor: Command, finished: Path, tmp_path: Path) -> None:
    """As export, serve and the others do: an older one branches off, the last one goes on in place."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / choice.BEST_FILE).unlink(missing_ok=True)
    choice.write_best(run, 4, 77.77)
    code, out, err = conveyor("restore", run, "--checkpoint", "best")
    assert code == 0, err
    assert f"goes on from {run / 'checkpoints' / '4'} in a folder of its own: {tmp_path / 'run-from-4'}" in out
    assert_same_bits(checkpoint(run, 6), checkpoint(tmp_path / "run-from-4", 6))
    code, out, err = conveyor("restore", run, "--checkpoint", "last", "--dry-run")
    assert code == 0, err
    for path, which, told in (
        (run, "5", "does not hold a checkpoint 5: choose --checkpoint best, last or one of 2, 4, 6"),
        (run / "checkpoints" / "4", "last", "is one checkpoint: leave out --checkpoint last"),
    ):
        code, _, err = conveyor("restore", path, "--checkpoint", which)
        assert (code, told in err) == (2, True), err


def test_restore_of_nothing_is_one_sentence(conveyor: Command, tmp_path: Path) -> None:
    for words in ([], ["--checkpoint-path", str(tmp_path / "absent")], ["--checkpoint-path", str(tmp_path)]):
        code, _, err = conveyor("restore", *words)
        assert code == 2
        assert err.startswith("conveyor: error:")
        assert len(err.splitlines()) == 1


def test_a_refused_restore_leaves_the_stored_options(conveyor: Command, tmp_path: Path) -> None:
    train(tmp_path / "run", updates=4, validation=False)
    before = (tmp_path / "run" / "options.yml").read_bytes()
    code, _, err = conveyor("restore", "--checkpoint-path", tmp_path / "run", "--updates", "2")
    assert (code, "past the end" in err) == (2, True)
    assert (tmp_path / "run" / "options.yml").read_bytes() == before
