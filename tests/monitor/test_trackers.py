"""Trackers: event files that TensorBoard reads, and a Weights & Biases run without a network."""

import resource
import time
from pathlib import Path

import pytest
import torch

import conveyor
from conveyor.monitor.histograms import histograms
from conveyor.monitor.trackers import TensorBoard, Wandb, make_trackers, named
from conveyor.options import Options


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


def test_a_full_disk_leaves_no_half_event(tmp_path: Path) -> None:
    """A reader of events stops at a half one: what is written when there is room again would be lost."""
    tracker = TensorBoard(tmp_path)
    tracker.start({})
    (file,) = tmp_path.iterdir()
    before, limits = file.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before + 3, limits[1]))
    try:
        with pytest.raises(OSError):
            tracker.log({"update": 1, "loss": 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.stat().st_size == before
    tracker.log({"update": 2, "loss": 1.0})
    assert scalars(tmp_path, "train/loss") == [(2, 1.0)]


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
    tracker.weights(1, histograms(WEIGHTS))
    tracker.end({"updates": 1, "accuracy": 50.0})
    files = list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 1
    # The library's own process writes the file, on a busy machine a moment later.
    deadline = time.monotonic() + 30
    while files[0].stat().st_size <= 100 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert files[0].stat().st_size > 100
    assert (tmp_path / "wandb-id.txt").read_text() in files[0].name


WEIGHTS = {
    "conv.weight": torch.tensor([[-1.0, 0.5], [0.5, 3.0]]),
    "bn.bias": torch.zeros(5),
    "bn.num_batches_tracked": torch.tensor(7),
    "lost": torch.tensor([float("nan"), float("inf"), 2.0]),
    "empty": torch.tensor([float("nan")]),
}


def test_histograms_count_every_finite_weight_once() -> None:
    found = histograms(WEIGHTS)
    assert {name: int(one.counts.sum()) for name, one in found.items()} == {"conv.weight": 4, "bn.bias": 5, "lost": 1}
    conv = found["conv.weight"]
    assert (conv.edges[0], conv.edges[-1], conv.sum, conv.sum_of_squares) == (-1.0, 3.0, 3.0, 10.5)
    assert [int(conv.counts[i]) for i in (0, 24, 63)] == [1, 2, 1]


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_histograms(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoard(tmp_path)
    tracker.start({})
    tracker.weights(30, histograms(WEIGHTS))
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    assert sorted(accumulator.Tags()["histograms"]) == ["weights/bn.bias", "weights/conv.weight", "weights/lost"]
    (event,) = accumulator.Histograms("weights/conv.weight")
    values = event.histogram_value
    assert (event.step, values.num, values.min, values.max, values.sum, values.sum_squares) == (30, 4, -1, 3, 3, 10.5)
    assert sum(values.bucket) == 4
    assert values.bucket_limit[-1] == 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["1x1", "1x2"])
def test_a_run_draws_its_weights_after_every_epoch(tmp_path: Path, layout: str) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = {"model": "resnet8", "data": "digits", "updates_per_epoch": 2, "updates": 5, "splits": ["layer2"]}
    options |= {"layout": layout, "accumulation": 2, "report": False, "quiet": True, "validation": False}
    conveyor.train(**options, weight_histograms=True, run_dir=str(tmp_path / "run"))
    accumulator = EventAccumulator(str(tmp_path / "run" / "tensorboard"), {"histograms": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["histograms"]
    assert {"weights/conv1.weight", "weights/layer3.0.bn1.running_var", "weights/fc.bias"} <= set(tags)
    assert [event.step for event in accumulator.Histograms("weights/fc.weight")] == [2, 4, 5]


def test_histograms_that_nobody_draws_are_noted(tmp_path: Path) -> None:
    options, notes = Options().replace(weight_histograms=True), list[str]()
    make_trackers(options, tmp_path, notes.append)
    assert notes == []
    make_trackers(options.replace(tensorboard=False), tmp_path, notes.append)
    assert [note for note in notes if "--weight-histograms has no effect" in note] == notes != []
