"""`conveyor validate --infer-precision`: the figures of what would be served, beside those of training's own precision."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.run.runs import train

Command = Callable[..., tuple[int, str, str]]


def test_it_says_the_epoch_and_which_options_it_does_not_read(conveyor: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, checkpoints_per_epoch=1, average_last=(2,))
    words = ["validate", run, "--json", "--run-dir", tmp_path / "out", "--max-validation-images", 30]
    code, out, err = conveyor(*words)
    assert code == 0, err
    plain = json.loads(out)
    code, out, err = conveyor(*words, "--infer-precision", "float32", "--repeat", 3, "--validation-views", "mirror")
    assert code == 0, err
    found = json.loads(out)
    assert "note: --repeat, --validation-views: no effect with --infer-precision" in " ".join(err.split())
    assert [one["name"] for one in found] == [f"{one['name']} float32" for one in plain]
    for name in ("update", "epoch", "images"):
        assert [one[name] for one in found] == [one[name] for one in plain]
    assert [one["loss"] for one in found] == pytest.approx([one["loss"] for one in plain], rel=1e-4)
    assert conveyor(*words, "--infer-precision", "float32")[2].count("no effect") == 0
