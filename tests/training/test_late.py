"""A signal in the middle of a long update: it is given up within the grace period, and the run goes on as if nothing was."""

import errno
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.exact import differences

from conveyor.training import late
from conveyor.world.world import World

SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
import conveyor
from conveyor.data.formats.memory import MemoryDataset


class Slow(MemoryDataset):
    '''Reads nothing while there is a file `hold`.'''

    def read(self, *about, **more):
        while Path("hold").exists():
            time.sleep(0.01)
        return super().read(*about, **more)


draw = np.random.default_rng(3)
images, labels = draw.integers(0, 256, (64, 12, 12, 1), dtype=np.uint8), np.arange(64) % 4
run = conveyor.train(
    model="resnet8", data=Slow(images, labels, 4), updates=2, micro_batch_size=8, accumulation=2, updates_per_log=1,
    updates_per_checkpoint=1, threads=1, device="cpu", report=False, tensorboard=False, checkpoint_at_start=True, grace=1,
    resume="auto", run_dir=sys.argv[1],
)
"""


def test_an_update_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    (tmp_path / "script.py").write_text(SCRIPT)
    job = subprocess.Popen([sys.executable, "script.py", "stopped"], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        until = time.monotonic() + 200
        while not (tmp_path / "stopped/checkpoints/0/manifest").exists():
            assert job.poll() is None
            assert time.monotonic() < until, "waited in vain"
            time.sleep(0.01)
        job.send_signal(signal.SIGTERM)
        said, _ = job.communicate(timeout=100)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 128 + signal.SIGTERM, said
    assert "stopped in update 1, which is given up; saved after update 0" in said
    (tmp_path / "hold").unlink()
    for name in ("stopped", "alone"):
        subprocess.run([sys.executable, "script.py", name], check=True, timeout=200, cwd=tmp_path)
    assert differences(tmp_path / "stopped", tmp_path / "alone") == []


def test_a_full_disk_is_told_and_ends_the_worker_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(folder: Path, state: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    codes: list[int] = []
    monkeypatch.setattr(late.checkpoints, "save", full)
    monkeypatch.setattr(late.os, "_exit", codes.append)
    session = SimpleNamespace(
        world=World(), reason=None, update=7, local_state=lambda: SimpleNamespace(), local_progress=lambda: dict,
        spec=SimpleNamespace(length=SimpleNamespace(updates_total=9)),
    )  # fmt: skip
    events = SimpleNamespace(folder=tmp_path, writer=SimpleNamespace(wait=lambda: None))
    given_up = late.Late(session, events)  # type: ignore[arg-type]
    with given_up.computing():
        given_up._give_up(signal.SIGTERM)
    assert codes == [128 + signal.SIGTERM]
    assert "stopped in update 8, which is given up; nothing was saved (the disk is full)" in capsys.readouterr().out
