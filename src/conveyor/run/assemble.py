"""Put the parts of a run together: model, lane, optimiser, data, clocks."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import nn

from conveyor import optim
from conveyor.checkpoint.state import State
from conveyor.data import open_dataset
from conveyor.data.batch import Batch, Dataset
from conveyor.data.feed import TrainingFeed
from conveyor.data.identity import Identity
from conveyor.data.transform.prepare import Prepare
from conveyor.evaluate.validator import Validation
from conveyor.numerics.allocator import keep_freed_memory
from conveyor.numerics.loss_scale import make_loss_scale
from conveyor.numerics.precision import Precision
from conveyor.optim.average import Ema
from conveyor.run import preflight
from conveyor.run.gemm_share import training_flops
from conveyor.run.start import check_fits
from conveyor.spec import RunSpec
from conveyor.training import build_model
from conveyor.training.half import half_choice
from conveyor.training.meter import Meter, Timing
from conveyor.training.session import Session
from conveyor.training.stopping import Stopping
from conveyor.training.update import Updater
from conveyor.world.world import World


@dataclass(frozen=True, slots=True)
class Own:
    """What a caller from Python brings along instead of naming it."""

    model: nn.Module | None = None
    train_data: Dataset | None = None
    validation_data: Dataset | None = None


def make_prepare(spec: RunSpec, world: World) -> Prepare:
    """What turns 8-bit images into the network's input."""
    return Prepare(
        spec.options,
        spec.data,
        world.device,
        Precision.from_options(spec.options.precision).compute,
        image_size=spec.image_size,
        channels=spec.in_channels,
    )


def make_session(spec: RunSpec, world: World, own: Own, state: State | None, prepare: Prepare) -> Session:
    """The run in memory, standing where `state` was saved."""
    options, timing = spec.options, Timing()
    identity = Identity.of(options.data, spec.data)
    if state is not None:
        identity.check(state.progress.get("data", state.progress))
        check_fits(state, spec)
    if world.device.type == "cpu":
        keep_freed_memory()
    model = build_model.build_model(spec, own=own.model, state=state)
    if world.is_main and world.depth == 1:
        build_model.check_splits(model, spec)
    if world.is_main:
        spec = spec.replace(notes=(*spec.notes, *preflight.unused_names(model, spec)))
    flops = training_flops(model, spec.image_size, spec.in_channels) if world.is_main else 0.0
    spec = spec.replace(half=half_choice(spec, state, world, model))
    model = build_model.place_model(model, spec, world.device)
    lane = build_model.build_lane(spec, world, model, prepare, timing)
    decay = options.optimizer.ema_decay
    session = Session(
        spec=spec,
        world=world,
        lane=lane,
        updater=Updater(
            lane,
            world,
            optim.make_optimizer(options, lane.module.named_parameters(), rmsprop_decay=spec.rmsprop_decay),
            make_loss_scale(options, updates_total=spec.updates_total),
            options.optimizer.clip_norm,
            None if decay is None else Ema(lane.module, decay),
        ),
        meter=Meter(world.device, world, timing, spec.dealt(world.lanes), lane.tallies),
        stopping=Stopping.from_options(options),
        timing=timing,
        identity=identity,
        flops=flops,
    )
    if state is not None:
        session.load(state)
    return session


def make_feed(
    spec: RunSpec, world: World, own: Own, prepare: Prepare, start_update: int, reads_data: bool = True
) -> AbstractContextManager[Iterator[Batch]]:
    """This lane's micro-batches from `start_update` on; none for a worker that only sees what other stages send."""
    if not reads_data:
        return nullcontext(iter(()))
    options = spec.options
    dataset = own.train_data or open_dataset(options, "train", spec.image_size, spec.in_channels)
    return TrainingFeed(
        dataset,
        spec.topology,
        updates_per_epoch=spec.updates_per_epoch,
        slots=spec.dealt(world.lanes).slots_of(world.lane),
        start_update=start_update,
        stop_update=spec.updates_total,
        seed=options.run.seed,
        shuffle=options.data.shuffle,
        prefetch=options.data.prefetch,
        threads=options.data.loader_threads,
        transform=prepare.on_host(True),
        pin=world.device.type == "cuda",
    )


def make_validation(spec: RunSpec, world: World, own: Own, prepare: Prepare) -> Validation | None:
    """The validation set, if there is one and it is wanted."""
    if not spec.options.events.validation or (spec.validation_images == 0 and own.validation_data is None):
        return None
    options = spec.options.replace(max_validation_images=spec.validation_images or None)
    dataset = own.validation_data or open_dataset(options, "validation", spec.image_size, spec.in_channels)
    return Validation(spec, world, dataset, prepare, own.model)
