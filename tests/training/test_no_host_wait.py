"""Nothing in an update waits for the device: whole updates on the `meta` device, where reading a value is an error.

Nor may a tensor be made there from values of the host, unless it asks not to wait: CUDA's copies wait for what is queued.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import schedules
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from conveyor.numerics import half_policy
from conveyor.options import Options
from conveyor.run import assemble
from conveyor.spec import resolve
from conveyor.training import build_model, stage_lane, update
from conveyor.training.meter import DeviceClock, Meter, Timing
from conveyor.training.whole_model_lane import LaneWork
from conveyor.tree import Dealt
from conveyor.world.exchange import Exchange
from conveyor.world.gradients import GradientSum
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


class SomeWorker(World):
    """A worker of several over torch's `fake` backend, whose messages go nowhere; the lanes' exchange is the real one."""

    def __init__(self, rank: int, lanes: int, depth: int) -> None:
        super().__init__("meta", rank=rank, lanes=lanes, depth=depth)
        self.stage_group = dist.group.WORLD if depth > 1 else None

    def sum_parts(self, parts: Tensor, dealt: Dealt) -> Tensor:
        exchange = self._exchange(dealt)
        return parts[0] if exchange is None else exchange.begin(parts)()

    def gradient_sum(self, sections: Any, bucket_bytes: int, dealt: Dealt) -> GradientSum:
        return GradientSum(sections, bucket_bytes, dealt, self.lane, self._exchange(dealt))

    def _exchange(self, dealt: Dealt) -> Exchange | None:
        if self.lanes == 1:
            return None
        return Exchange(dealt, self.lane, list(range(self.lanes)), dist.group.WORLD, self.device)


@contextmanager
def worker(rank: int, lanes: int, depth: int) -> Iterator[World]:
    dist.init_process_group("fake", rank=rank, world_size=lanes * depth, store=FakeStore())
    group = dist.group.WORLD
    assert group is not None
    group._register_backend(
        torch.device("meta"), dist.ProcessGroup.BackendType.CUSTOM, group._get_backend(torch.device("cpu"))
    )
    try:
        yield SomeWorker(rank, lanes, depth)
    finally:
        dist.destroy_process_group()


class NoWaitingCopy(TorchFunctionMode):
    """Refuses values of the host on the device, in a list or in a tensor, without `non_blocking`."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        result = function(*arguments, **named)
        if function in (Tensor.__getitem__, Tensor.__setitem__):
            index = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
            waits = arguments[0].is_meta and any(isinstance(one, list) or _is_host(one) for one in index)
        elif function in (torch.tensor, torch.as_tensor, Tensor.new_tensor):
            waits = result.is_meta
        else:
            copies = {Tensor.to: result, Tensor.copy_: arguments[0]}
            target = copies.get(function)
            waits = (
                target is not None
                and target.is_meta
                and any(map(_is_host, arguments))
                and not named.get("non_blocking")
            )
        assert not waits, f"{function.__name__} waits for the device"
        return result


class Event:
    """An event in a queue whose work takes a second each."""

    queued = 0

    def record(self) -> None:
        Event.queued += 1
        self.place = Event.queued

    def synchronize(self) -> None:
        """Nothing is queued in truth."""

    def elapsed_time(self, after: "Event") -> float:
        return 1000.0 * (after.place - self.place)


def _is_host(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_meta and value.dim() > 0


def two_updates(world: World | None = None, **options: Any) -> Tensor:
    world, timing = world or World("meta"), Timing()
    timing._clock = DeviceClock(Event)
    spec = resolve(Options.from_mapping(BASE | {"layout": f"{world.lanes}x{world.depth}"} | options))
    model = build_model.outline(spec.options, spec.subject)
    model = build_model.place_model(model, spec, world.device)
    prepare = assemble.make_prepare(spec, world)
    loss = assemble.make_loss(spec, world, assemble.UserObjects())
    lane, updater = assemble.lane_and_updater(LaneWork(spec, world, prepare, timing, loss), model)
    meter = Meter(world.device, world, timing, spec.dealt(world.lanes))
    with assemble.make_feed(spec, world, assemble.UserObjects(), prepare, 0) as batches:
        for number in range(2):
            # The first update also makes what is kept, such as the constants of the normalisation.
            with NoWaitingCopy() if number else nullcontext():
                tally = lane.gradients(batches, number, updater.loss_scale.value)
                updater.apply(number, 0.1)
                meter.add(tally)
                meter.local_state()
    assert updater.optimizer.steps == 2
    assert not any(timing.seconds.values())
    timing.settle()
    phases = [
        "forward",
        "backward",
        "reduce",
        *(["wait"] if world.depth > 1 else []),
        *(["data"] if lane.reads_data else []),
    ]
    assert all(timing.seconds[phase] > 0 for phase in phases)
    return tally


PLAIN: list[dict[str, Any]] = [
    {},
    {"optimizer": "adam"},
    {"optimizer": "lars"},
    {"optimizer": "lamb", "clip_norm": 1.0},
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


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("options", [{}, {"precision": "bf16", "mixup_alpha": 0.2, "bucket_size": "4KiB"}], ids=str)
def test_nor_does_one_of_a_lane_of_two(options: dict[str, Any], rank: int) -> None:
    with worker(rank, 2, 1) as world:
        assert two_updates(world, **options).device.type == "meta"


def _shapes_are_known(schedule: Any, stages: Any, has_backward: bool, done: bool) -> None:
    for stage in stages:
        stage._inference_mode = schedules.InferenceMode.STATIC


STAGED: list[dict[str, Any]] = [
    {"mixup_alpha": 0.2, "clip_norm": 1.0, "ema_decay": 0.9},
    {"pipeline_schedule": "1f1b", "recompute": ["block"], "optimizer": "adam"},
    {"stages": 4, "pipeline_schedule": "interleaved-1f1b", "precision": "bf16"},
    {"stages": 4, "pipeline_schedule": "zero-bubble", "model": "efficientnet_cifar", "dropout": 0.2},
]


@pytest.mark.parametrize("options", STAGED, ids=str)
def test_nor_does_a_stage_of_a_pipeline(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    labels: deque[Tensor] = deque()
    """What the first worker sends to the last, from host to host; everything else stays on the device."""

    def send(message: Tensor, *_: Any, **__: Any) -> Any:
        labels.append(message.clone())
        return SimpleNamespace(wait=lambda: None)

    between = SimpleNamespace(isend=send, recv=lambda message, *_, **__: message.copy_(labels.popleft()))
    monkeypatch.setattr(stage_lane, "dist", between)
    # Before its first update the library asks all stages whether their shapes are known, and reads the answer.
    monkeypatch.setattr(schedules._PipelineSchedule, "_warmup_p2p", _shapes_are_known)
    for rank in range(2):
        with worker(rank, 1, 2) as world:
            assert two_updates(world, **{"stages": 2} | options).device.type == "meta"
    assert not labels


@pytest.mark.parametrize("scale", ["auto", "histogram"])
def test_a_moving_loss_scale_reads_one_flag(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether to skip the update has to be known by the host, see docs/gpu.md; nothing else is.
    with pytest.raises(RuntimeError, match="meta"):
        two_updates(precision="16.32", loss_scale=scale)
    monkeypatch.setattr(update, "_read", lambda flag: flag.device.type == "meta")
    two_updates(precision="16.32", loss_scale=scale)
