"""Nothing in an update waits for the device: whole updates on the `meta` device, where reading a value is an error."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from conveyor.numerics import half_policy
from conveyor.options import Options
from conveyor.run import assemble
from conveyor.spec import resolve
from conveyor.training import build_model
from conveyor.training.meter import Meter, Timing
from conveyor.world.world import World

BASE: dict[str, Any] = {
    "data": "digits", "model": "cifar_resnet8", "micro_batch_size": 4, "accumulation": 2, "updates": 2, "device": "cpu",
    "threads": 1, "tensorboard": False, "quiet": True,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def fused_sgd() -> Iterator[None]:
    """PyTorch's fused SGD has no kernel for the meta device; it changes its arguments in place and returns nothing."""
    library = torch.library.Library("aten", "IMPL", "Meta")
    library.impl("_fused_sgd_", lambda *arguments, **named: None)
    yield
    library._destroy()


def two_updates(**options: Any) -> torch.Tensor:
    spec = resolve(Options.from_mapping(BASE | options))
    world, timing = World.single("meta"), Timing()
    model = build_model.outline(spec.options, spec.subject)
    model = build_model.place_model(model, spec, world.device)
    prepare = assemble.make_prepare(spec, world)
    lane, updater = assemble.lane_and_updater(
        spec, world, model, prepare, timing, (assemble.make_loss(spec, world, assemble.UserObjects()), None)
    )
    meter = Meter(world.device, world, timing, spec.dealt(1))
    with assemble.make_feed(spec, world, assemble.UserObjects(), prepare, 0) as batches:
        for update in range(2):
            tally = lane.gradients(batches, update, updater.loss_scale.value)
            updater.apply(update, 0.1)
            meter.add(tally)
    assert updater.optimizer.steps == 2
    return tally


PLAIN: list[dict[str, Any]] = [
    {},
    {"optimizer": "adam"},
    {"optimizer": "lars"},
    {"optimizer": "rmsprop"},
    {"optimizer": "muon"},
    {"clip_norm": 1.0, "ema_decay": 0.9},
    {"train_crop": "resized", "flip": "random"},
    {"train_crop": "pad", "flip": "alternating"},
    {"mixup_alpha": 0.2, "cutmix_lambda": 0.5, "label_smoothing": 0.1},
    {"model": "efficientnet_cifar", "dropout": 0.2},
    {"augment": "randaugment"},
    {"augment": "trivialaugment", "color_jitter": [0.4], "random_erasing": 0.5},
    {"model": "mobilenet_v2", "image_size": 32},
    {"norm": "group", "norm_groups": 4},
    {"recompute": ["block"]},
]
HALF: list[dict[str, Any]] = [
    {"precision": "bf16"},
    {"precision": "16.16", "stochastic_rounding": "all"},
    {"precision": "16.32", "loss_scale": "16..128"},
]


@pytest.mark.parametrize(
    ("options", "native"), [*((one, False) for one in PLAIN + HALF), *((one, True) for one in HALF)], ids=str
)
def test_an_update_reads_no_value(options: dict[str, Any], native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_policy, "fast_half", lambda device, dtype: native)
    assert two_updates(**options).device.type == "meta"


def test_the_meta_device_would_tell() -> None:
    # A loss scale that follows overflow has to be read by the host: see docs/gpu.md.
    with pytest.raises(RuntimeError, match="meta"):
        two_updates(precision="16.32", loss_scale="auto")
