"""A run as numbers: everything that follows from the options, computed once (no torch here).

`--dry-run` prints a `RunSpec`, the worker runs it. Nothing in it depends on files on the disk, except for image folders
whose images have to be counted.
"""

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from conveyor.data import catalogue as datasets
from conveyor.data.catalogue import DatasetInfo
from conveyor.data.formats.folders import is_plain
from conveyor.data.subject import Subject, subject
from conveyor.errors import UserError
from conveyor.layout import Layout, Machine, choose_layout, deal, validation_layout
from conveyor.models import catalogue as models
from conveyor.models import sources
from conveyor.optim.schedule import Schedule, make_schedule
from conveyor.options import Options
from conveyor.options.optimizer import DEFAULT_RMSPROP_DECAY
from conveyor.options.validation import without_updates
from conveyor.topology import HostEvents, Length, Topology, exact, group_slots, host_events
from conveyor.tree import Dealt

if TYPE_CHECKING:
    from conveyor.numerics.half_choice import HalfChoice

TINY_SLOT = 2e9
"""Floating-point operations of one slot below which a second thread costs more in waiting than it brings."""
OWN_MODEL = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What a run consists of."""

    options: Options
    data: DatasetInfo
    model_name: str
    image_size: int
    num_classes: int
    in_channels: int
    topology: Topology
    group_slots: int
    """Slots that share one pass through the network."""
    split_points: tuple[str, ...]
    layout: Layout
    layout_note: str
    length: Length
    warmup_updates: int
    peak_lr: float
    rmsprop_decay: float
    schedule: Schedule
    events: HostEvents
    validation_batch: int
    validation_replicas: int
    validation_images: int
    notes: tuple[str, ...] = ()
    half: "HalfChoice | None" = None
    """How CPUs compute in half precision; measured when the run starts, then kept."""

    @property
    def updates_per_epoch(self) -> int:
        return self.length.updates_per_epoch

    @property
    def updates_total(self) -> int:
        return self.length.updates_total

    @property
    def epochs(self) -> Fraction:
        return self.length.epochs

    def dealt(self, lanes: int) -> Dealt:
        """Which groups of slots each of `lanes` lanes computes."""
        return deal(self.topology.slots, self.group_slots, lanes, self.options.model.bn_span)

    def replace(self, **changes: Any) -> "RunSpec":
        """The same run with some values changed (another layout, say)."""
        return dataclasses.replace(self, **changes)

    def to_json(self, command: str = "train") -> dict[str, Any]:
        """The object that `--dry-run --json` prints."""
        topology, events, options = self.topology, self.events, self.options
        training: dict[str, Any] = {
            "train_images": self.data.train_images,
            "slots": topology.slots,
            "group_slots": self.group_slots,
            "epochs": _number(self.epochs),
            "updates_per_epoch": self.updates_per_epoch,
            "updates_total": self.updates_total,
            "warmup_updates": self.warmup_updates,
            "peak_lr": self.peak_lr,
            "optimiser": options.optimizer.optimizer,
            "rmsprop_decay": self.rmsprop_decay,
            "schedule": options.schedule.lr_schedule,
            "updates_per_log": events.updates_per_log,
            "updates_per_checkpoint": events.updates_per_checkpoint,
            "updates_per_call": events.updates_per_call,
            "calls": events.calls,
            "split_points": list(self.split_points),
        }
        return {
            "model": self.model_name,
            "data": self.data.name,
            "image_size": self.image_size,
            "num_classes": self.num_classes,
            "in_channels": self.in_channels,
            "micro_batch": topology.micro_batch,
            "accumulation": topology.accumulation,
            "replicas": topology.replicas,
            "stages": topology.stages,
            "devices": _devices(options, topology),
            "global_batch": topology.global_batch,
            **(training if options.events.training else {}),
            "precision": options.precision.precision,
            "validation": {
                "batch": self.validation_batch,
                "replicas": self.validation_replicas,
                "images": self.validation_images,
            },
            "layout": str(self.layout),
            "threads": self.layout.threads,
            "notes": list(self.notes),
            "command": options.command_text(command if options.events.training else "validate"),
        }


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
    options.check()
    data = info or datasets.info(options.data)
    told: tuple[str, ...] = ()
    if model_name is None:
        options, told = sources.completed(options, photographs=data.kind == "files")
    made_up = _made_up(options, data)
    data = dataclasses.replace(data, validation_images=min(data.validation_images, made_up or data.validation_images))
    _check_data(options, data)
    topology, notes = Topology.from_options(options.batch)
    length = _length(options, data, topology)
    about = subject(options, data, model_name)
    machine = machine or _machine(options)
    where = options.layout
    if where.threads is None and not machine.accelerators and _is_tiny(about, topology.micro_batch):
        where = dataclasses.replace(where, threads=1)
    elif where.threads is None and model_name is not None and workers is None:
        # A module of the caller's own runs in the caller's process alone: it may have all cores.
        where = dataclasses.replace(where, threads=machine.cores)
    _check_span(options.model.bn_span, topology)
    group = _group(options, topology, about)
    validation_batch = options.events.validation_batch_size or topology.micro_batch
    if options.events.training:
        layout, layout_note = choose_layout(where, topology, machine, workers, topology.slots // group)
        exactness = _exactness(options, topology, group, layout, machine, model_name is not None)
        layout_note = f"{layout_note}; {exactness}"
    else:
        batches = -(-data.validation_images // validation_batch)
        layout, layout_note = validation_layout(where, batches, machine, workers)
    schedule = _schedule(options, topology, length)
    events = _events(options, length)
    _check_averages(options, events)
    return RunSpec(
        options=options,
        data=data,
        model_name=about.name,
        image_size=about.image_size,
        num_classes=about.num_classes,
        in_channels=about.in_channels,
        topology=topology,
        group_slots=group,
        split_points=options.batch.splits,
        layout=layout,
        layout_note=layout_note,
        length=length,
        warmup_updates=schedule.warmup,
        peak_lr=schedule.peak,
        rmsprop_decay=_rmsprop_decay(options, topology),
        schedule=schedule,
        events=events,
        validation_batch=validation_batch,
        validation_replicas=options.events.validation_replicas or _devices(options, topology),
        validation_images=data.validation_images,
        notes=(
            *told,
            *_no_interpolation(options, data),
            *notes,
            *events.notes,
            *_unused_devices(options, machine),
            *_held_out(data, options),
            *(
                [f"validation is on the {made_up} different images of made-up data (--max-validation-images)"]
                if made_up
                else []
            ),
            *_dropped_images(data, topology, length, options),
            *_random_weights(options, about.name),
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
        options,
        peak_lr=_peak_rate(options, topology),
        updates_per_epoch=length.updates_per_epoch,
        updates_total=length.updates_total,
        global_batch=topology.global_batch,
        warmup_updates=int(warmup),
    )


def _events(options: Options, length: Length) -> HostEvents:
    asked = options.events
    return host_events(
        length,
        logs_per_epoch=asked.logs_per_epoch,
        checkpoints_per_epoch=asked.checkpoints_per_epoch,
        first_checkpoint_epoch=exact(asked.first_checkpoint_epoch),
        updates_per_log=asked.updates_per_log,
        updates_per_checkpoint=asked.updates_per_checkpoint,
        updates_per_call=asked.updates_per_call,
    )


def _machine(options: Options) -> Machine:
    machine = Machine.here(options.layout.device)
    chosen = options.layout.device_ids
    if not machine.accelerators or not chosen:
        return machine
    absent = [number for number in chosen if number >= machine.accelerators]
    if absent:
        there = "device 0" if machine.accelerators == 1 else f"devices 0 to {machine.accelerators - 1}"
        raise UserError(f"--device-ids {absent[0]}: there is no such device, this machine has {there}")
    return dataclasses.replace(machine, accelerators=len(chosen))


def _unused_devices(options: Options, machine: Machine) -> list[str]:
    chosen = options.layout.device_ids
    if machine.accelerators or not chosen:
        return []
    why = "the run is on the CPU (--device cpu)" if options.layout.device == "cpu" else "the run is on the CPU"
    return [f"--device-ids {' '.join(map(str, chosen))} has no effect: {why}"]


def _no_interpolation(options: Options, data: DatasetInfo) -> list[str]:
    if options.data.interpolation is None or data.kind == "files":
        return []
    return [f"--interpolation {options.data.interpolation} has no effect: the images of {data.name} are no photographs"]


def _held_out(data: DatasetInfo, options: Options) -> list[str]:
    folder = datasets.data_dir(options.data)
    if data.name != "folder" or folder is None or options.data.hold_out == 1 or not is_plain(folder):
        return []
    return [f"{folder} has no validation/ of its own: {data.validation_images} of its images are held out (--hold-out)"]


def _made_up(options: Options, data: DatasetInfo) -> int:
    """Images to validate on while training on noise, which repeats a few: each once. 0: as many as the data set has."""
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


def _exactness(options: Options, topology: Topology, group: int, layout: Layout, machine: Machine, own: bool) -> str:
    """Whether other layouts of the run compute the same bits, and if not, why."""
    if machine.accelerators:
        return "accelerators: equal to other layouts within rounding"
    if not deal(topology.slots, group, layout.lanes, options.model.bn_span).exact:
        return "not bit-identical to other layouts: lanes share a batch-norm span"
    if own:
        return "bit-identical to other layouts if your module's layers are"
    return "bit-identical to any other layout"


def _is_tiny(about: Subject, micro_batch: int) -> bool:
    """Whether training on one slot is so little work that threads would mostly wait for each other."""
    known = models.canonical(about.name)
    costs = models.counts().get(known) if known is not None else None
    if known is None or costs is None:
        return False
    per_image = 6.0 * costs.multiply_adds * (about.image_size / models.entry(known).image_size) ** 2
    return per_image * micro_batch < TINY_SLOT


def _devices(options: Options, topology: Topology) -> int:
    """Devices that would hold the run as asked; stages may share one."""
    mapping = options.batch.device_mapping
    return topology.replicas * (max(mapping) + 1 if mapping else topology.stages)


def _peak_rate(options: Options, topology: Topology) -> float:
    rate, reference = options.schedule.learning_rate, options.schedule.lr_reference_batch
    return rate if reference is None else rate * topology.global_batch / reference


def _rmsprop_decay(options: Options, topology: Topology) -> float:
    per_sample = options.optimizer.rmsprop_decay_per_sample
    if per_sample is None:
        given = options.optimizer.rmsprop_decay
        return DEFAULT_RMSPROP_DECAY if given is None else given
    decay = 1 - per_sample * topology.global_batch
    if decay < 0:
        raise UserError(
            f"the rmsprop decay 1 - {per_sample:g} x global batch {topology.global_batch} = {decay:g} is negative: "
            "lower --rmsprop-decay-per-sample or the batch"
        )
    return decay


def _check_data(options: Options, data: DatasetInfo) -> None:
    classes = options.model.num_classes
    if classes is not None and classes < data.num_classes:
        raise UserError(
            f"--num-classes {classes} is less than the {data.num_classes} classes of {data.name}: leave it out, or give at "
            f"least {data.num_classes}"
        )
    if options.events.training and data.train_images < 1:
        raise UserError(f"there is no image to train on ({data.title or data.name}): see --data-dir and --hold-out")
    if options.events.training:
        datasets.check_crop_overlap(options.data, data)


def _check_averages(options: Options, events: HostEvents) -> None:
    """Averages are made after the last update: what cannot be made is better said before the first."""
    asked = options.events
    if (asked.average_last or asked.average_decay) and asked.training and events.updates_per_checkpoint == 0:
        flag = "--average-last" if asked.average_last else "--average-decay"
        raise UserError(f"{flag} needs checkpoints to average: give --checkpoints-per-epoch more than 0")


def _check_span(span: int, topology: Topology) -> None:
    if topology.replicas % span:
        raise UserError(
            f"a batch-norm span of {span} does not divide {topology.replicas} replicas: "
            f"choose --bn-span from the divisors of {topology.replicas}"
        )


def _dropped_images(data: DatasetInfo, topology: Topology, length: Length, options: Options) -> list[str]:
    if not options.events.training or options.length.updates_per_epoch is not None or data.kind == "none":
        return []
    dropped = data.train_images - length.updates_per_epoch * topology.global_batch
    if dropped <= 0:
        return []
    note = f"{dropped} of {data.train_images} images do not fill a global batch of {topology.global_batch} and sit out each "
    return [note + "epoch (other ones each time)"]


def _random_weights(options: Options, name: str) -> list[str]:
    known = options.run.checkpoint_path or options.model.weights or name == OWN_MODEL
    return [] if known or options.events.training else ["random weights are validated: no checkpoint is given"]


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)
