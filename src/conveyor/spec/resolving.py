"""From options to a `RunSpec`: all the arithmetic of a run, in one function."""

import dataclasses

from conveyor.data import catalogue as datasets
from conveyor.data.catalogue import DatasetInfo
from conveyor.data.subject import Subject, completed_subject
from conveyor.errors import UserError
from conveyor.layout import Machine, choose_layout, validation_layout
from conveyor.models import catalogue as models
from conveyor.optim.schedule import Schedule, make_schedule
from conveyor.options import Options
from conveyor.options.validation import check_training, without_updates
from conveyor.spec import checks
from conveyor.spec.run_spec import RunSpec
from conveyor.topology import Length, Topology, group_slots, host_events

TINY_SLOT = 2e9
"""Floating-point operations of one slot below which a second thread costs more in waiting than it brings."""


def resolve(
    options: Options,
    *,
    info: DatasetInfo | None = None,
    model_name: str | None = None,
    machine: Machine | None = None,
    workers: int | None = None,
) -> RunSpec:
    """All the arithmetic of a run.

    `info` and `model_name` stand in for a data set or a model of the user's own; `workers` is the number of processes
    that a launcher has already started. Without training, nothing about updates can refuse the run.
    """
    if not options.events.training:
        options = without_updates(options)
    check_training(options)
    options.check()
    if info is not None:
        datasets.check_own(options.data)
    data = info or datasets.info(options.data)
    options, about, told = completed_subject(options, data, model_name)
    made_up = _generated_images(options, data)
    data = dataclasses.replace(data, validation_images=min(data.validation_images, made_up or data.validation_images))
    checks.check_data(options, data)
    checks.check_order(options)
    checks.check_task(options, data)
    checks.check_targets(options)
    checks.check_trackers(options)
    topology, notes = Topology.from_options(options.batch)
    checks.check_memory(about, topology.micro_batch)
    length = _length(options, data, topology)
    machine = machine or _machine(options)
    where = options.layout
    if where.threads is None and not machine.accelerators and _is_tiny(about, topology.micro_batch):
        where = dataclasses.replace(where, threads=1)
    elif where.threads is None and model_name is not None and workers is None:
        # A module of the caller's own runs in the caller's process alone: it may have all cores.
        where = dataclasses.replace(where, threads=machine.cores)
    checks.check_span(options.model.bn_span, topology)
    group = _group(options, topology, about)
    validation_batch = options.events.validation_batch_size or topology.micro_batch
    if options.events.training:
        layout, layout_note = choose_layout(where, topology, machine, workers, topology.slots // group)
        idle = 0 if machine.accelerators else max(0, layout.lanes - topology.slots // group)
        usual = where.threads or machine.threads(topology.slots // group)
        about_bits = checks.exactness(
            machine, model_name is not None, layout.threads, usual, options.optimizer.optimizer, options.model.model
        )
        layout_note = f"{layout_note}; {checks.idle_lanes(idle, group, options)}{about_bits}"
    else:
        batches = -(-data.validation_images // validation_batch)
        layout, layout_note = validation_layout(where, batches, machine, workers)
    schedule = _schedule(options, topology, length)
    events = host_events(length, options.events)
    checks.check_averages(options, events)
    options.optimizer.decay_of_squares(topology.global_batch)  # refused now if it is negative
    return RunSpec(
        options=options,
        data=data,
        subject=about,
        topology=topology,
        group_slots=group,
        layout=layout,
        layout_note=layout_note,
        length=length,
        schedule=schedule,
        release=_release(options, topology, length),
        events=events,
        validation_batch=validation_batch,
        validation_replicas=options.events.validation_replicas or topology.devices,
        cuts_spans=machine.accelerators > 0,
        notes=(
            *([] if model_name is not None or (random := checks.random_weights(options)) is None else [random]),
            *told,
            *checks.unused(options, data),
            *notes,
            *events.notes,
            *checks.unused_devices(options, machine),
            *checks.odd_data(options, data),
            *checks.validation_set(options, data),
            *(
                [f"validation is on the {made_up} different images of made-up data (--max-validation-images)"]
                if made_up
                else []
            ),
            *checks.absent_classes(options, data),
            *checks.dropped_images(data, topology, length, options),
            *checks.unused_time(options, length, schedule.warmup),
            *(() if model_name is not None else checks.random_start(options, data)),
        ),
    )


def _length(options: Options, data: DatasetInfo, topology: Topology) -> Length:
    return Length.of(
        max(1, data.train_images),
        topology.global_batch,
        epochs=options.length.epochs if options.length.epochs is not None else data.default_epochs,
        updates=options.length.updates,
        updates_per_epoch=options.length.updates_per_epoch or (None if options.events.training else 1),
        by_images=options.length.epochs_by_images,
    )


def _schedule(options: Options, topology: Topology, length: Length) -> Schedule:
    warmup = options.schedule.warmup.updates(
        updates_per_epoch=length.epoch_length if options.length.epochs_by_images else length.updates_per_epoch,
        updates_total=length.updates_total,
        global_batch=topology.global_batch,
    )
    return make_schedule(
        options.schedule,
        peak_lr=_peak_rate(options, topology),
        updates_per_epoch=length.updates_per_epoch,
        updates_total=length.updates_total,
        global_batch=topology.global_batch,
        warmup_updates=int(warmup),
    )


def _release(options: Options, topology: Topology, length: Length) -> int | None:
    chosen = options.optimizer
    if chosen.freeze != "none" and chosen.train_only:
        raise UserError("--freeze backbone and --train-only exclude each other: both say what is trained")
    if chosen.unfreeze_at is None:
        return None
    if chosen.freeze == "none" and not chosen.train_only:
        raise UserError(f"--unfreeze-at {chosen.unfreeze_at}: nothing is frozen; add --freeze backbone")
    return length.updates(chosen.unfreeze_at, topology.global_batch)


def _machine(options: Options) -> Machine:
    machine = Machine.here(options.layout.device)
    if not machine.accelerators:
        return machine
    for flag, chosen in checks.chosen_devices(options):
        absent = [number for number in chosen if number >= machine.accelerators]
        if absent:
            there = "device 0" if machine.accelerators == 1 else f"devices 0 to {machine.accelerators - 1}"
            raise UserError(f"{flag} {absent[0]}: there is no such device, this machine has {there}")
    return dataclasses.replace(machine, accelerators=len(options.layout.device_ids) or machine.accelerators)


def _generated_images(options: Options, data: DatasetInfo) -> int:
    """Validation images of a run on generated images: each distinct one once. 0: as many as the data set has."""
    asked = options.data
    if not (asked.generated_data or asked.synthetic_data) or asked.max_validation_images or not options.events.training:
        return 0
    return min(datasets.MADE_UP_IMAGES, data.validation_images)


def _group(options: Options, topology: Topology, about: Subject) -> int:
    """Slots that share a pass. Modules of the user's own may mix the samples of a batch, so they get one span at a time."""
    asked, span = options.batch.pass_slots, options.model.bn_span
    # Activations that are rounded at random are keyed by the first slot of a pass.
    ours = models.canonical(about.name) is not None and options.precision.stochastic_rounding != "all"
    return group_slots(topology, span, about.image_size, asked) if ours or asked != "auto" else span


def _is_tiny(about: Subject, micro_batch: int) -> bool:
    """Whether training on one slot is so little work that threads would mostly wait for each other."""
    known = models.canonical(about.name)
    costs = models.counts().get(known) if known is not None else None
    if known is None or costs is None:
        return False
    per_image = 6.0 * costs.multiply_adds * (about.image_size / models.entry(known).image_size) ** 2
    return per_image * micro_batch < TINY_SLOT


def _peak_rate(options: Options, topology: Topology) -> float:
    rate, reference = options.schedule.learning_rate, options.schedule.lr_reference_batch
    return rate if reference is None else rate * topology.global_batch / reference
