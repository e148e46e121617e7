"""A finished run for the commands."""

from pathlib import Path

import pytest
from tests.run.runs import train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "finished"
    train(run, updates=6, updates_per_checkpoint=2)
    return run
