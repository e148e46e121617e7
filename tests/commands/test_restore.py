"""`conveyor restore` as a user types it."""

from pathlib import Path

from tests.commands.typed import SMALL, Command
from tests.run.runs import assert_same_bits, checkpoint, names, train


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


def test_a_refused_restore_leaves_the_stored_options(conveyor: Command, tmp_path: Path) -> None:
    train(tmp_path / "run", updates=4, validation=False)
    before = (tmp_path / "run" / "options.yml").read_bytes()
    code, _, err = conveyor("restore", "--checkpoint-path", tmp_path / "run", "--updates", "2")
    assert (code, "past the end" in err) == (2, True)
    assert (tmp_path / "run" / "options.yml").read_bytes() == before
