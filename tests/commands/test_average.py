"""`conveyor average` as a user types it."""

from pathlib import Path

import torch
from tests.commands.typed import Command
from tests.run.runs import checkpoint

from conveyor.checkpoint import folder as one


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
    code, _, err = conveyor("average", "--checkpoint-path", finished, "--decay", "0.5", "--output", target)
    assert (code, "add --mode exponential" in err) == (2, True), "it was ignored"
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
