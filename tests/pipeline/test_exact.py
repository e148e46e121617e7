"""Random option sets on many layouts: whole run folders equal, file by file, without tolerance."""

import functools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.exact import TENSORS, differences

SPLITS = (["layer1", "layer2", "layer3"], ["layer1.0.bn2", "layer2.0.relu", "layer3.0.add"])
"""At the start of layers, and inside residual blocks, where two tensors cross."""
LAYOUTS = ("2x1", "3x1", "4x1", "1x2", "2x2", "1x4")


def random_options(number: int) -> dict[str, Any]:
    """One of the option sets; the same number gives the same set."""
    draw = random.Random(f"exact-{number}")
    model = draw.choice(["cifar_resnet8", "cifar_resnet14", "cifar_bottleneck11", "efficientnet_cifar", "mobilenet_v2"])
    replicas = draw.choice([1, 2, 4])
    accumulation = draw.choice([one for one in (2, 3, 4, 6, 8) if one * replicas >= 4])
    options: dict[str, Any] = {
        "data": "digits",
        "model": model,
        "image_size": draw.choice([8, 16]) if model.startswith("cifar") else 16,
        "norm": draw.choice(["batch", "batch", "group", "proxy"]) if model != "mobilenet_v2" else "batch",
        "norm_groups": 4,
        "micro_batch_size": draw.choice([2, 3, 4, 6]),
        "accumulation": accumulation,
        "replicas": replicas,
        "stages": 4,
        "pipeline_schedule": draw.choice(
            ["gpipe", "1f1b", "sequential", "interleaved-1f1b", "looped-bfs", "zero-bubble"]
        ),
        "precision": draw.choice(["32.32", "32.32", "16.32", "16.16"]),
        "half_type": draw.choice(["float16", "bfloat16"]),
        "optimizer": draw.choice(["sgd", "momentum", "rmsprop", "adam", "adamw", "lars", "lamb", "muon"]),
        "learning_rate": 0.005,
        "weight_decay": 1e-4,
        "label_smoothing": draw.choice([0.0, 0.1]),
        "seed": number,
        "device": "cpu",
        "threads": 1,
        "tensorboard": False,
        "quiet": True,
        "max_validation_images": 60,
        "validation_batch_size": 25,
        "logs_per_epoch": "4",
        "updates_per_checkpoint": 20,
    }
    if options["precision"] != "32.32":
        options["stochastic_rounding"] = draw.choice(["off", "weights", "all"])
        options["loss_scale"] = draw.choice(["64", "auto", "histogram", "16..128"])
    if (options["precision"], options["half_type"]) == ("16.16", "float16"):
        # Squares of gradients below 6e-8 are zero there, and what is divided by the root of zero plus 1e-8 ends the run.
        options["optimizer_epsilon"] = 1e-3 if options["optimizer"] in ("rmsprop", "adam", "adamw", "lamb") else None
    for name, value in {
        "mixup_alpha": 0.2,
        "cutmix_lambda": 0.5,
        "ema_decay": 0.9,
        "clip_norm": 1.0,
        "dropout": 0.2,
        "recompute": ["block"] if model != "mobilenet_v2" else ["features"],
    }.items():
        if draw.random() < 0.35:
            options[name] = value
    if model == "mobilenet_v2":
        options["width_coefficient"] = 0.25
    if model.startswith("cifar"):
        options.pop("dropout", None)
        if draw.random() < 0.5:
            options["splits"] = draw.choice(SPLITS)
        if draw.random() < 0.35:
            options["survival"] = 0.7
    if model == "mobilenet_v2":
        options["clip_norm"] = 1.0  # its deep norms see three values here: gradients of millions
    # Some sets leave lanes without work: fewer passes than lanes.
    options["bn_span"] = draw.choice([one for one in (1, 2, 4) if replicas % one == 0])
    joined = [one for one in (1, 2) if accumulation * replicas % (one * options["bn_span"]) == 0]
    options["pass_slots"] = str(options["bn_span"] * draw.choice(joined))
    return options


def run_case(rank: int, text: str, lanes: int, depth: int, folder: str) -> str:
    """A whole run as one worker of lanes x depth."""
    from conveyor.options import Options
    from conveyor.run import worker
    from conveyor.spec import resolve
    from conveyor.world.distributed import ProcessWorld

    options = Options.from_mapping({**json.loads(text), "layout": f"{lanes}x{depth}", "run_dir": folder})
    spec = resolve(options)
    assert "bit-identical to any other layout" in spec.layout_note, spec.layout_note
    worker.run(spec, ProcessWorld(lanes, depth))
    return folder


@functools.cache
def _whole(pool: Any, text: str, folder: Path) -> Path:
    (found,) = pool.run(run_case, 1, text=text, lanes=1, depth=1, folder=str(folder / "1x1"))
    return Path(found)


def check(pool: Any, number: int, layout: str, updates: int, folder: Path) -> None:
    text = json.dumps({**random_options(number), "updates": updates}, sort_keys=True)
    expected = _whole(pool, text, folder)
    lanes, depth = (int(part) for part in layout.split("x"))
    pool.run(run_case, lanes * depth, text=text, lanes=lanes, depth=depth, folder=str(folder / layout))
    assert (expected / "checkpoints" / str(updates) / "model.safetensors").exists()
    assert differences(folder / layout, expected) == [], text


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return functools.cache(lambda number: tmp_path_factory.mktemp("set"))


@pytest.mark.parametrize(("number", "layout"), [(1, "3x1"), (1, "2x2"), (2, "2x1"), (2, "1x4"), (3, "4x1"), (3, "1x2")])
def test_random_options(pool: Any, folders: Any, number: int, layout: str) -> None:
    check(pool, number, layout, 6, folders(number))


@pytest.mark.conformance
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", range(25))
def test_random_options_to_the_sixtieth_update(pool: Any, folders: Any, number: int, layout: str) -> None:
    check(pool, number, layout, 60, folders(number))


FINE_TUNING: dict[str, Any] = {
    "data": "digits", "model": "resnet8", "micro_batch_size": 4, "accumulation": 2, "replicas": 2, "stages": 2,
    "optimizer": "adamw", "learning_rate": 0.005, "weight_decay": 0.01, "clip_norm": 1.0, "ema_decay": 0.9, "seed": 3,
    "freeze": "backbone", "unfreeze_at": "3up", "layer_decay": 0.75, "updates": 6, "updates_per_epoch": 6, "threads": 1,
    "max_validation_images": 40, "updates_per_checkpoint": 1, "device": "cpu", "tensorboard": False, "quiet": True,
}  # fmt: skip


@pytest.mark.parametrize(("layout", "precision"), [("2x1", "32.32"), ("1x2", "32.32"), ("1x2", "16.32")])
def test_what_is_frozen_is_released_alike_everywhere(pool: Any, folders: Any, layout: str, precision: str) -> None:
    folder, text = folders(precision), json.dumps({**FINE_TUNING, "precision": precision}, sort_keys=True)
    expected = _whole(pool, text, folder)
    lanes, depth = (int(part) for part in layout.split("x"))
    pool.run(run_case, lanes * depth, text=text, lanes=lanes, depth=depth, folder=str(folder / layout))
    assert differences(folder / layout, expected) == []
    first, last = (load_file(expected / "checkpoints" / str(update) / "model.safetensors") for update in (1, 6))
    before, after = (load_file(expected / "checkpoints" / str(update) / "model.safetensors") for update in (3, 4))
    for name, value in first.items():
        if not name.startswith("fc."):
            assert torch.equal(value, before[name]), f"{name} moved while it was frozen"
    assert not torch.equal(before["conv1.weight"], after["conv1.weight"])
    assert not torch.equal(first["bn1.running_mean"], last["bn1.running_mean"])


WITHOUT_WEIGHTS: dict[str, Any] = {
    **random_options(1), "model": "cifar_resnet8", "norm": "batch", "stages": 4, "precision": "32.32", "updates": 3,
    "splits": ["layer1.0.act1", "layer1.0.conv2", "layer2"], "updates_per_checkpoint": 1, "ema_decay": 0.9, "clip_norm": 1.0,
    "average_last": [2], "weight_histograms": True, "tensorboard": True, "recompute": [], "pipeline_schedule": "1f1b",
}  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        {"optimizer": "lars", "lars_eta": 0.02},
        {"optimizer": "muon", "nesterov": True},
        {"optimizer": "lamb", "precision": "16.16", "half_type": "bfloat16", "stochastic_rounding": "all", "loss_scale": "auto"},
        {"optimizer": "rmsprop", "precision": "16.32", "half_type": "float16", "loss_scale": "histogram", "ema_warmup": "2up"},
        {"optimizer": "momentum", "freeze": "backbone", "unfreeze_at": "2up"},
    ],
)  # fmt: skip
def test_a_stage_may_hold_no_weights(pool: Any, folders: Any, more: dict[str, Any]) -> None:
    """The second stage is one activation."""
    text = json.dumps({**WITHOUT_WEIGHTS, **more}, sort_keys=True)
    folder = folders(text)
    expected = _whole(pool, text, folder)
    pool.run(run_case, 4, text=text, lanes=1, depth=4, folder=str(folder / "1x4"))
    assert differences(folder / "1x4", expected) == []


@pytest.mark.parametrize("update", [2, 3, 4])
def test_a_run_restored_around_the_release_ends_alike(pool: Any, folders: Any, update: int) -> None:
    text = json.dumps({**FINE_TUNING, "precision": "16.32"}, sort_keys=True)
    expected = _whole(pool, text, folders("16.32"))
    again = json.dumps({**json.loads(text), "checkpoint_path": str(expected / "checkpoints" / str(update))})
    folder = expected.parent / f"from-{update}"
    pool.run(run_case, 1, text=again, lanes=1, depth=1, folder=str(folder))
    for name in TENSORS:
        one, other = (run / "checkpoints" / "6" / name for run in (folder, expected))
        assert one.read_bytes() == other.read_bytes(), name


def test_the_first_line_is_of_the_whole_model(pool: Any, folders: Any) -> None:
    text = json.dumps({**FINE_TUNING, "updates": 1, "quiet": False}, sort_keys=True)
    first = set()
    for depth in (1, 2):
        folder = folders("opening") / f"1x{depth}"
        pool.run(run_case, depth, text=text, lanes=1, depth=depth, folder=str(folder))
        first.add((folder / "log.txt").read_text().splitlines()[0])
    (line,) = first
    assert "(75,002 parameters" in line
