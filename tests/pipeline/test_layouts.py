"""Where a run runs never changes what it computes, not by one bit: weights after 10 updates on many layouts, with real processes."""

import contextlib
import functools
import json
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

UPDATES = 10

BASE: dict[str, Any] = {
    "data": "digits",
    "model": "resnet8",
    "micro_batch_size": 4,
    "accumulation": 2,
    "replicas": 2,
    "learning_rate": 0.01,
    "weight_decay": 0.001,
    "updates": UPDATES,
    "validation_batch_size": 37,
    "tensorboard": False,
    "seed": 3,
    "device": "cpu",
    "threads": 1,
}


def small_efficientnet(num_classes: int, in_channels: int) -> nn.Module:
    """Squeeze-and-excite, drop connect and dropout in a few narrow blocks."""
    from conveyor.models.efficientnet import make
    from conveyor.models.layers.norms import NormChoice
    from conveyor.models.layers.stochastic import name_layers

    torch.manual_seed(5)
    model = make(
        num_classes=num_classes,
        in_channels=in_channels,
        norm=NormChoice(),
        width_coefficient=0.25,
        depth_coefficient=0.5,
        expand_ratio=2,
        top_width=160,
        survival=0.6,
        cifar=True,
    )
    name_layers(model)
    return model


def train_case(
    rank: int,
    text: str,
    lanes: int,
    depth: int,
    own: bool = False,
    validate: bool = False,
    updates: int = UPDATES,
    cuts_spans: bool = False,
) -> dict[str, Any]:
    """Train as one worker of lanes x depth; everyone returns the whole model's state."""
    from conveyor.numerics.half_choice import HalfChoice
    from conveyor.options import Options
    from conveyor.run import assemble
    from conveyor.run.assemble import UserObjects, make_feed, make_prepare, make_session, make_validation
    from conveyor.spec import OWN_MODEL, resolve
    from conveyor.world.distributed import ProcessWorld

    asked = json.loads(text)
    native = asked.pop("native", None)
    """Instead of what this machine is found to be fast at."""
    options = Options.from_mapping({**asked, "layout": f"{lanes}x{depth}"})
    spec = resolve(options, model_name=OWN_MODEL if own else None).replace(cuts_spans=cuts_spans)
    world = ProcessWorld(lanes, depth, "cpu", spec.lanes_per_span(lanes))
    mine = UserObjects(small_efficientnet(spec.subject.num_classes, spec.subject.in_channels) if own else None)
    prepare = make_prepare(spec, world)
    chosen = {} if native is None else {"half_choice": lambda *_: HalfChoice(native)}
    with mock.patch.multiple(assemble, **chosen) if chosen else contextlib.nullcontext():
        session = make_session(spec, world, mine, None, prepare)
    session.lane.module.train()
    commits = []
    with make_feed(spec, world, mine, prepare, 0, session.lane.reads_data) as feed:
        for update in range(updates):
            tally = session.lane.gradients(iter(feed), update, session.updater.loss_scale.value)
            session.updater.apply(update, spec.schedule.rate(update))
            world.sum_over_all([tally])
            session.meter.add(tally)
            session.update += 1
            commits.append(1)
    result: dict[str, Any] = {
        "state": {name: tensor.detach().clone() for name, tensor in session.model_state().items()},
        "loss": session.meter.read(spec.topology.global_batch)["loss"],
        "norm": None if session.updater.gradient_norm is None else float(session.updater.gradient_norm),
    }
    if validate:
        validation = make_validation(spec, world, mine, prepare)
        assert validation is not None
        accuracy = validation.of_session(session)
        result |= {"top1": accuracy.top1, "top5": accuracy.top5, "images": accuracy.images, "val_loss": accuracy.loss}
    return result


@functools.cache
def _reference(pool: Any, text: str, own: bool) -> dict[str, Any]:
    (result,) = pool.run(train_case, 1, text=text, lanes=1, depth=1, own=own, validate=True)
    return dict(result)


def differing(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """Names of tensors that are not equal bit for bit."""
    assert set(found) == set(expected)
    return [name for name, tensor in expected.items() if not torch.equal(bits(found[name]), bits(tensor))]


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def check(pool: Any, layout: str, own: bool = False, validate: bool = False, **options: Any) -> None:
    text = json.dumps({**BASE, **options}, sort_keys=True)
    same = {**BASE, **options}
    # The reference folds everything: no schedule, no mapping, nothing recomputed.
    for name in ("pipeline_schedule", "device_mapping", "recompute", "bucket_size", "pipelined_validation"):
        same.pop(name, None)
    expected = _reference(pool, json.dumps(same, sort_keys=True), own)
    lanes, depth = (int(number) for number in layout.split("x"))
    results = pool.run(train_case, lanes * depth, text=text, lanes=lanes, depth=depth, own=own, validate=validate)
    for result in results:
        assert differing(result["state"], expected["state"]) == []
        assert result["loss"] == expected["loss"]
        assert result["norm"] == expected["norm"]
        if validate:
            assert [result[key] for key in VALIDATED] == [expected[key] for key in VALIDATED]


VALIDATED = ("images", "top1", "top5", "val_loss")
BATCH_NORM = {"splits": ["layer1", "layer2", "layer3"]}
INSIDE_BLOCKS = {"splits": ["layer1.0.bn2", "layer2.0.relu", "layer3.0.add"]}


@pytest.mark.parametrize("layout", ["2x1", "3x1", "4x1", "1x2", "2x2", "1x4"])
def test_batch_norm(pool: Any, layout: str) -> None:
    check(pool, layout, validate=True, **BATCH_NORM)


@pytest.mark.parametrize(
    ("layout", "schedule"), [("2x1", "gpipe"), ("1x2", "gpipe"), ("1x2", "zero-bubble"), ("1x4", "1f1b")]
)
def test_part_of_the_network_is_trained(pool: Any, layout: str, schedule: str) -> None:
    # Whole stages have nothing to train, and nothing to add to the norm of the gradient.
    check(pool, layout, train_only=["^layer3", "fc"], clip_norm=0.5, pipeline_schedule=schedule, **BATCH_NORM)


@pytest.mark.parametrize("layout", ["2x2", "1x4"])
def test_group_norm_cut_inside_blocks_with_clipping(pool: Any, layout: str) -> None:
    check(pool, layout, norm="group", norm_groups=4, clip_norm=0.5, **INSIDE_BLOCKS)


@pytest.mark.parametrize("layout", ["4x1", "2x2"])
def test_efficientnet_with_drop_connect(pool: Any, layout: str) -> None:
    # Batch norm over few values amplifies rounding errors by a factor per update: keep the images large enough.
    options = {"image_size": 16, "micro_batch_size": 6, "learning_rate": 0.002, "mixup_alpha": 0.2}
    check(pool, layout, own=True, validate=True, splits=["blocks.2", "blocks.5"], model=None, **options)


@pytest.mark.parametrize("layout", ["2x1", "1x2", "2x2"])
def test_one_update_of_efficientnet_at_a_high_rate(pool: Any, layout: str) -> None:
    # At such a rate rounding errors grow tenfold to hundredfold per update, so the first is compared, tensor by tensor.
    lanes, depth = (int(number) for number in layout.split("x"))
    options = {**BASE, "model": None, "splits": ["blocks.2", "blocks.5"], "learning_rate": 0.05}
    options |= {"image_size": 16, "micro_batch_size": 16}
    case = {"text": json.dumps(options, sort_keys=True), "own": True, "updates": 1}
    (expected,) = pool.run(train_case, 1, lanes=1, depth=1, **case)
    for result in pool.run(train_case, lanes * depth, lanes=lanes, depth=depth, **case):
        for name, tensor in expected["state"].items():
            if tensor.is_floating_point():
                error = (result["state"][name].double() - tensor.double()).norm()
                assert float(error) <= 1e-6 * float(tensor.double().norm()) + 1e-7, name


@pytest.mark.parametrize(
    ("schedule", "layout"),
    [
        ("1f1b", "1x4"),
        ("sequential", "1x2"),
        ("interleaved-1f1b", "1x2"),
        ("looped-bfs", "1x2"),
        ("zero-bubble", "2x2"),
    ],
)
def test_every_schedule(pool: Any, schedule: str, layout: str) -> None:
    check(pool, layout, pipeline_schedule=schedule, **BATCH_NORM)


@pytest.mark.parametrize(
    ("layout", "recompute", "schedule"),
    [
        ("2x1", ["block"], "gpipe"),
        ("1x2", ["block"], "1f1b"),
        ("1x2", ["stage"], "gpipe"),
        ("1x2", ["layer2"], "zero-bubble"),
    ],
)
def test_recomputation(pool: Any, layout: str, recompute: list[str], schedule: str) -> None:
    check(pool, layout, recompute=recompute, pipeline_schedule=schedule, **INSIDE_BLOCKS)


def test_stages_on_any_worker(pool: Any) -> None:
    check(pool, "1x2", device_mapping=[0, 1, 1, 0], validate=True, pipelined_validation=True, **BATCH_NORM)


def test_pipelined_validation_counts_every_image_once(pool: Any) -> None:
    check(pool, "2x2", validate=True, pipelined_validation=True, **INSIDE_BLOCKS)


def test_automatic_splits_and_loss_scale(pool: Any) -> None:
    check(pool, "1x4", stages=4, splits=["auto"], loss_scale="128", bucket_size="4KiB")


@pytest.mark.parametrize("layout", ["2x1", "2x2", "4x1"])
def test_batch_norm_span(pool: Any, layout: str) -> None:
    check(pool, layout, bn_span=2, accumulation=2, replicas=4, splits=["layer2"])


@pytest.mark.parametrize("layout", ["4x1", "2x2"])
def test_no_lane_gets_a_part_of_a_batch_norm_span(pool: Any, layout: str) -> None:
    # One span (two of the four lanes, or one of two, have nothing to do) is exact as well.
    check(pool, layout, bn_span=4, accumulation=1, replicas=4, splits=["layer2"])


def test_a_batch_norm_span_that_lanes_share_is_close(pool: Any) -> None:
    # What accelerators do, which promise no equal bits: four lanes for two spans, each span's statistics from two lanes.
    options = {**BASE, "bn_span": 2, "accumulation": 1, "replicas": 4, "seed": 4}
    (expected,) = pool.run(train_case, 1, text=json.dumps(options), lanes=1, depth=1)
    for result in pool.run(train_case, 4, text=json.dumps(options), lanes=4, depth=1, cuts_spans=True):
        assert relative_error(result["state"], expected["state"]) < 1e-5


def relative_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Over all weights and statistics together: |found - expected| / |expected|."""
    names = [name for name, tensor in expected.items() if tensor.is_floating_point()]
    difference = torch.cat([(found[name].double() - expected[name].double()).flatten() for name in names]).norm()
    return float(difference / torch.cat([expected[name].double().flatten() for name in names]).norm())


@pytest.mark.parametrize("layout", ["2x1", "3x1", "1x2", "2x2"])
@pytest.mark.parametrize(
    "options",
    [
        {"precision": "16.32", "loss_scale": "128"},
        {"precision": "16.16", "loss_scale": "auto", "stochastic_rounding": "weights"},
        {"precision": "16.32", "half_type": "bfloat16"},
        {"precision": "16.16", "half_type": "bfloat16", "stochastic_rounding": "all"},
    ],
    ids=["16.32", "16.16", "bf16.32", "bf16.16"],
)
def test_half_precision(pool: Any, layout: str, options: dict[str, Any]) -> None:
    check(pool, layout, micro_batch_size=8, **options, **BATCH_NORM)


@pytest.mark.parametrize("native", [True, False], ids=["native", "emulated"])
@pytest.mark.parametrize("layout", ["2x1", "1x2", "1x4"])
def test_bfloat16_native_and_emulated(pool: Any, layout: str, native: bool) -> None:
    """Cut inside blocks: fused norms, sums and activations round where the separate ones do."""
    half = {"precision": "16.32", "half_type": "bfloat16"}
    check(pool, layout, micro_batch_size=8, native=native, validate=True, **half, **INSIDE_BLOCKS)
