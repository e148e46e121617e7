"""Trackers: event files that TensorBoard reads, and a Weights & Biases run without a network."""

import time
from pathlib import Path

import pytest

from conveyor.monitor.trackers import TensorBoard, Wandb, named


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_what_was_written_and_a_resume_replaces_later_steps(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path, "model: resnet20")
    first.start({})
    for update in (5, 10, 15):
        first.log({"update": update, "loss": update / 10, "name": "text is no scalar"})
    first.validation({"update": 10, "accuracy": 61.5})
    second = TensorBoard(tmp_path, "model: resnet20")
    second.start({}, resumed_at=10)
    second.log({"update": 15, "loss": 9.5})
    assert scalars(tmp_path, "train/loss") == [(5, 0.5), (10, 1.0), (15, 9.5)]
    assert scalars(tmp_path, "validation/accuracy") == [(10, 61.5)]


@pytest.mark.filterwarnings("ignore")
def test_options_are_on_the_text_page(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    TensorBoard(tmp_path, "model: resnet20\nseed: 3").start({})
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    tensor = accumulator.Tensors("options")[0].tensor_proto
    assert tensor.string_val[0].decode() == "    model: resnet20\n    seed: 3\n"


def test_names_are_the_same_everywhere() -> None:
    assert named("train", {"update": 3, "loss": 1, "name": "x"}) == {"train/loss": 1.0}


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = Wandb(tmp_path, "conveyor", "a-run", ("tag",))
    tracker.start({"global_batch": 64})
    tracker.log({"update": 1, "loss": 2.0})
    tracker.validation({"update": 1, "accuracy": 50.0})
    tracker.end({"updates": 1, "accuracy": 50.0})
    files = list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 1
    # The library's own process writes the file, on a busy machine a moment later.
    deadline = time.monotonic() + 30
    while files[0].stat().st_size <= 100 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert files[0].stat().st_size > 100
    assert (tmp_path / "wandb-id.txt").read_text() in files[0].name
