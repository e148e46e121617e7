"""What a worker records of its own updates."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conveyor.errors import UserError
from conveyor.monitor import timeline
from conveyor.monitor.worker_profile import WorkerProfile, make_worker_profile
from conveyor.options.run import RunOptions


@pytest.fixture(autouse=True)
def _quiet_again() -> Iterator[None]:
    yield
    timeline.here.enabled = False
    timeline.here.spans.clear()


def run(watch: WorkerProfile, updates: int, slots: int = 2) -> None:
    clock = 0.0
    for _ in range(updates):
        for phase in ["data", "forward", "backward"] * slots + ["reduce", "update"]:
            watch.mark(phase, clock, clock + 1)
            clock += 1


def test_three_updates_after_the_first_are_kept(tmp_path: Path) -> None:
    watch = WorkerProfile(tmp_path, 5, record=True)
    run(watch, 6)
    watch.close()
    spans = timeline.read(tmp_path)
    assert len(spans) == 3 * 8
    assert {span["worker"] for span in spans} == {5}
    assert [(span["phase"], span["slot"]) for span in spans[:8]] == [
        ("data", 0), ("forward", 0), ("backward", 0), ("data", 1), ("forward", 1), ("backward", 1), ("reduce", -1), ("update", -1),
    ]  # fmt: skip
    assert spans[-1]["end"] == pytest.approx(24.0)


def test_a_short_run_keeps_what_there_is(tmp_path: Path) -> None:
    watch = WorkerProfile(tmp_path, record=True)
    run(watch, 2)
    watch.close()
    watch.close()
    assert len(timeline.read(tmp_path)) == 8


def test_stages_that_record_themselves_are_not_covered_up(tmp_path: Path) -> None:
    watch = WorkerProfile(tmp_path, record=True)
    run(watch, 1)
    timeline.here.add("forward", 1.0, 2.0, stage=1, slot=0)
    watch.mark("backward", 0.0, 9.0)
    watch.mark("reduce", 9.0, 10.0)
    watch.close()
    assert [(span["phase"], span["stage"]) for span in sorted(timeline.read(tmp_path), key=lambda span: span["phase"])] == [
        ("forward", 1), ("reduce", 0),
    ]  # fmt: skip


def test_off_writes_nothing(tmp_path: Path) -> None:
    watch = WorkerProfile(tmp_path)
    run(watch, 6)
    watch.close()
    assert list(tmp_path.iterdir()) == []


def test_a_profile_folder_that_cannot_be_made_is_said_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = RunOptions(profile="light", profile_dir=str(tmp_path / "file"))
    with pytest.raises(UserError, match="--profile-dir"):
        make_worker_profile(options, tmp_path, 0, None, on_cpu=True)
