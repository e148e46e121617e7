"""Put the parts of a run together: model, lane, optimiser, data, timers."""

import functools
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from conveyor.checkpoint.state import State
from conveyor.data import open_dataset
from conveyor.data.batch import Batch, Dataset
from conveyor.data.feed import TrainingFeed
from conveyor.data.identity import Identity
from conveyor.data.labels import class_weights
from conveyor.data.transform.prepare import Prepare
from conveyor.evaluate.validator import Validation
from conveyor.numerics.allocator import keep_freed_memory
from conveyor.numerics.loss_scale import make_loss_scale
from conveyor.numerics.precision import Precision
from conveyor.optim.average import Ema
from conveyor.optim.optimizer import make_optimizer
from conveyor.run import preflight
from conveyor.run.gemm_rate import training_flops
from conveyor.run.start import check_fits
from conveyor.run.teacher import make_teacher
from conveyor.spec import RunSpec
from conveyor.training import build_model
from conveyor.training.half import half_choice
from conveyor.training.lane import Lane
from conveyor.training.loss import Loss
from conveyor.training.meter import Meter, Timing
from conveyor.training.session import Session
from conveyor.training.stopping import Stopping
from conveyor.training.update import Updater
from conveyor.training.whole_model_lane import LaneWork
from conveyor.world.world import World, validation_device


@dataclass(frozen=True, slots=True)
class UserObjects:
    """Objects that a Python caller passes instead of naming them in options."""

    model: nn.Module | None = None
    train_data: Dataset | None = None
    validation_data: Dataset | None = None
    callbacks: Sequence[Any] = ()


def make_prepare(spec: RunSpec, world: World, device: torch.device | None = None) -> Prepare:
    """What turns 8-bit images into the network's input, on the worker's device unless another is named."""
    return Prepare(
        spec.options,
        spec.data,
        device or world.device,
        Precision.from_options(spec.options.precision).compute,
        spec.subject,
    )


def make_session(spec: RunSpec, world: World, own: UserObjects, state: State | None, prepare: Prepare) -> Session:
    """The run in memory, at the update at which `state` was saved."""
    options, timing = spec.options, Timing(world.device)
    identity = Identity.of(options.data, spec.data)
    if state is not None:
        identity.check(state.progress.get("data", state.progress))
        check_fits(state, spec)
    if world.device.type == "cpu":
        keep_freed_memory()
    model = build_model.build_model(spec, own=own.model, state=state)
    build_model.check_trainable(model)
    if world.is_main and world.depth == 1:
        build_model.check_splits(model, spec)
    if world.is_main:
        spec = spec.replace(notes=(*spec.notes, *preflight.unused_names(model, spec)))
    flops = training_flops(model, spec.subject.image_size, spec.subject.in_channels) if world.is_main else 0.0
    parameters = sum(parameter.numel() for parameter in model.parameters())
    spec = spec.replace(half=half_choice(spec, state, world, model))
    update = 0 if state is None else state.update
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    model = build_model.place_model(model, spec, world.device, update=update)
    frozen = {name for name, parameter in model.named_parameters() if name in trained and not parameter.requires_grad}
    teacher = make_teacher(spec, world, own.train_data, prepare)
    work = LaneWork(spec, world, prepare, timing, make_loss(spec, world, own), teacher)
    lane, updater = lane_and_updater(work, model)
    session = Session(
        spec=spec,
        world=world,
        lane=lane,
        updater=updater,
        meter=Meter(world.device, world, timing, spec.dealt(world.lanes), lane.tallies),
        stopping=Stopping.from_options(options),
        timing=timing,
        identity=identity,
        flops=flops,
        parameters=parameters,
    )
    if state is not None:
        session.load(state)
    if spec.release is not None and update < spec.release:
        session.release = functools.partial(_release, session, work, frozen)
    return session


def lane_and_updater(work: LaneWork, model: nn.Module) -> tuple[Lane, Updater]:
    """What computes the gradients of the parameters that are trained now, and what applies them."""
    spec, options = work.spec, work.spec.options
    rates = build_model.layer_rates(model, options.schedule.layer_decay)
    lane = build_model.build_lane(work, model)
    optimizer = make_optimizer(
        options, lane.module.named_parameters(), global_batch=spec.topology.global_batch, layer_rates=rates
    )
    decay, warmup, batch = options.optimizer.ema_decay, options.optimizer.ema_warmup, spec.topology.global_batch
    warming = 0 if warmup is None else spec.length.updates(warmup, batch)
    return lane, Updater(
        lane,
        work.world,
        optimizer,
        make_loss_scale(options.precision.loss_scale, updates_total=spec.length.updates_total),
        options.optimizer.clip_norm,
        None if decay is None else Ema(lane.module, decay, warming),
    )


def _release(session: Session, work: LaneWork, frozen: Collection[str]) -> None:
    """Train the parameters called `frozen` too, as if the run were restored here; the optimiser's state starts again.

    A stage of a pipeline is cut out of the whole model again: what crosses its boundaries depends on what is trained.
    """
    spec, world, state = session.spec, session.world, session.state()
    session.lane.close()
    if world.depth == 1:
        model = session.lane.module
        build_model.release(model, frozen)
    else:
        model = build_model.place_model(
            build_model.build_model(spec, state=state), spec, world.device, update=session.update
        )
    before = session.updater
    session.lane, session.updater = lane_and_updater(work, model)
    session.updater.loss_scale = before.loss_scale
    session.updater.optimizer.load_masters(state.optimizer)
    if session.updater.ema is not None:
        session.updater.ema.load_state_dict(state.averages)
    session.lane.module.train()
    session.release = None


def make_loss(spec: RunSpec, world: World, own: UserObjects) -> Loss:
    """The loss, with the weights of the classes that the options ask for."""
    options, choice = spec.options, spec.options.optimizer.class_weights
    if choice is None:
        return Loss.from_options(options, spec.subject.num_classes)
    dataset = own.train_data or open_dataset(options, "train", spec.subject.image_size, spec.subject.in_channels)
    weights = class_weights(choice, dataset, spec.data.class_names, spec.subject.num_classes)
    return Loss.from_options(options, spec.subject.num_classes, torch.tensor(weights, device=world.device))


def make_feed(
    spec: RunSpec, world: World, own: UserObjects, prepare: Prepare, start_update: int, reads_data: bool = True
) -> AbstractContextManager[Iterator[Batch]]:
    """This lane's micro-batches from `start_update` on; none for a worker that only receives from other stages."""
    if not reads_data:
        return nullcontext(iter(()))
    options = spec.options
    dataset = own.train_data or open_dataset(options, "train", spec.subject.image_size, spec.subject.in_channels)
    return TrainingFeed(
        dataset,
        spec.topology,
        updates_per_epoch=spec.length.updates_per_epoch,
        slots=spec.dealt(world.lanes).slots_of(world.lane),
        start_update=start_update,
        stop_update=spec.length.updates_total,
        seed=options.run.seed,
        shuffle=options.data.shuffle,
        repeats=options.data.repeated_augmentation,
        balanced=options.data.balanced_sampling,
        prefetch=options.data.prefetch,
        threads=options.data.loader_threads,
        transform=prepare.on_host(True),
        pin=world.device.type == "cuda",
    )


def make_validation(spec: RunSpec, world: World, own: UserObjects, prepare: Prepare) -> Validation | None:
    """The validation set, if there is one and it is wanted."""
    if not spec.options.events.validation or (spec.data.validation_images == 0 and own.validation_data is None):
        return None
    options = spec.options.replace(max_validation_images=spec.data.validation_images or None)
    dataset = own.validation_data or open_dataset(
        options, "validation", spec.subject.image_size, spec.subject.in_channels
    )
    relayed = world.depth > 1 and spec.options.layout.pipelined_validation  # through the stages where they are
    device = world.device if relayed else validation_device(spec.options.layout, world.device, world.rank)
    prepare = prepare if device == world.device else make_prepare(spec, world, device)
    return Validation(spec, world, dataset, prepare, own.model, device)
