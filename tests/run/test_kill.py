"""Exact resume: a run killed at random moments ends with the bits of the run that was never killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 100


@pytest.mark.timeout(900)
def test_a_hundred_kills_lose_nothing_and_change_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.run.kills", str(tmp_path), str(KILLS), "0"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["kills"] == KILLS
    assert result["resumed"] > KILLS // 4, "too few lives began from a checkpoint to prove anything"
    assert result["different"] == []
