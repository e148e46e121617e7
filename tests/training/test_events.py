"""Checkpoints by time, whatever the number of updates until then."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conveyor.options import Options
from conveyor.run import worker
from conveyor.spec import resolve
from conveyor.training import events
from conveyor.training.whole_model_lane import WholeModelLane

OPTIONS = Options().replace(
    updates=12, updates_per_epoch=12, micro_batch_size=4, accumulation=1, validation=False, tensorboard=False, quiet=True,
    report=False, device="cpu", threads=1, layout="1x1",
)  # fmt: skip


def test_checkpoints_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of 100 seconds each: five minutes have gone by after every third."""
    clock = SimpleNamespace(now=0.0)
    gradients = WholeModelLane.gradients

    def slow(self: WholeModelLane, *arguments: Any) -> Any:
        clock.now += 100
        return gradients(self, *arguments)

    worker.run(resolve(OPTIONS.replace(run_dir=str(tmp_path / "plain"))))
    monkeypatch.setattr(WholeModelLane, "gradients", slow)
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: clock.now))
    worker.run(resolve(OPTIONS.replace(run_dir=str(tmp_path / "timed"), checkpoint_every="5min")))
    saved = {
        name: sorted(int(one.parent.name) for one in (tmp_path / name).glob("checkpoints/[0-9]*/manifest"))
        for name in ("plain", "timed")
    }
    assert saved == {"plain": [12], "timed": [3, 6, 9, 12]}
    last = [(tmp_path / name / "checkpoints/12/model.safetensors").read_bytes() for name in saved]
    assert last[0] == last[1]
