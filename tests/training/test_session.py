"""Going on from a checkpoint whose files are as they were written, and written wrongly."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.test_folder import forge
from tests.run.runs import train

from conveyor.checkpoint import folder as one


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("loss_scale", None),
        ("loss_scale", {"skipped": [[]]}),
        ("stopping", {"best_accuracy": {}}),
        ("stopping", {}),
        ("meter", {"sum": ["x"]}),
        ("meter", {"sum": [1.0]}),
        ("meter", {"sums": [[1.0, 2.0]]}),
        ("timing", {"data": "9" * 5000}),
        ("timing", []),
        ("last_accuracy", "high"),
        ("validated_at", {}),
    ],
)
def test_progress_of_another_form_is_one_sentence(
    tmp_path: Path, conveyor: Callable[..., tuple[int, str, str]], part: str, value: Any
) -> None:
    run = tmp_path / "run"
    train(run, updates=2, updates_per_checkpoint=1)
    path = run / "checkpoints" / "1"
    document = json.loads((path / one.STATE).read_text())
    document["progress"][part] = value
    forge(path, one.STATE, json.dumps(document).encode())
    code, _, err = conveyor("restore", "--checkpoint-path", path, "--run-dir", tmp_path / "new")
    assert code == 2
    assert "the checkpoint at update 1 is not one of this run" in err
    assert "Traceback" not in err
