"""Checks of a run before anything is started, and notes for its user: one sentence each."""

from importlib.util import find_spec
from pathlib import Path

from conveyor.data import catalogue as datasets
from conveyor.data.catalogue import DatasetInfo
from conveyor.data.formats import divide
from conveyor.data.formats.folders import is_plain
from conveyor.errors import UserError
from conveyor.layout import Machine
from conveyor.models.library_models import is_library
from conveyor.options import Options, specs
from conveyor.options.units import jitter_reaches
from conveyor.topology import HostEvents, Length, Topology

FEW_IMAGES = 20_000
"""Photographs below which published weights give a better start than random ones."""
ADVISED = "tf_efficientnet_lite0"


def check_data(options: Options, data: DatasetInfo) -> None:
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


def check_order(options: Options) -> None:
    """Refuse a colour jitter that means nothing, and what says twice how often a sample is shown."""
    jitter_reaches(options.data.color_jitter)
    if options.data.balanced_sampling and options.data.repeated_augmentation > 1:
        raise UserError(
            "--balanced-sampling and --repeated-augmentation exclude each other: both say how often an image is shown"
        )


def check_task(options: Options, data: DatasetInfo) -> None:
    """Refuse what has no meaning for images with several classes."""
    chosen, classes = options.optimizer, options.model.num_classes
    if not options.data.multi_label:
        if options.events.best_by in ("map", "f1_micro"):
            raise UserError(f"--best-by {options.events.best_by} is a figure of --task multi-label: choose another")
        return
    for flag, given, why in (
        ("--loss cross-entropy", chosen.loss == "cross-entropy", "its probabilities exclude each other"),
        ("--label-smoothing", chosen.label_smoothing > 0, "it spreads one label over the other classes"),
        ("--teacher", chosen.teacher is not None, "distillation compares probabilities of which one class has all"),
        ("--balanced-sampling", options.data.balanced_sampling, "an image of several classes has no class to draw by"),
        ("--synthetic-data", options.data.synthetic_data, "made-up images have one class"),
        (f"--num-classes {classes}", classes not in (None, data.num_classes), f"the labels have {data.num_classes}"),
    ):
        if given:
            raise UserError(f"{flag} has no meaning with --task multi-label ({why}): leave it out")


def check_targets(options: Options) -> None:
    """Refuse files that are not there before anything starts."""
    chosen = options.optimizer
    for flag, path in (("--teacher", chosen.teacher), ("--class-weights", chosen.class_weights)):
        if path is not None and path != "balanced" and not Path(path).exists():
            raise UserError(f"{flag} {path}: there is nothing at this path")


def unused_targets(options: Options) -> list[str]:
    chosen = options.optimizer
    notes = []
    if chosen.bce_threshold is not None and chosen.loss != "bce" and not options.data.multi_label:
        notes.append("--bce-threshold has no effect: it belongs to --loss bce")
    names = ("distillation", "teacher_temperature", "teacher_share")
    given = [specs()[name].flag for name in names if name in options.changed()]
    if given and chosen.teacher is None:
        notes.append(f"{', '.join(given)}: no effect without --teacher: there is no distillation")
    elif chosen.distillation == "hard" and chosen.teacher_temperature != 1:
        notes.append("--teacher-temperature has no effect: hard distillation takes the teacher's best class")
    return notes


def unused_shuffle(options: Options) -> list[str]:
    if not options.data.balanced_sampling or options.data.shuffle == "full":
        return []
    return [f"--shuffle {options.data.shuffle} has no effect: --balanced-sampling makes the order"]


def check_compile(options: Options) -> None:
    """Refuse what a compiled block would not compute alike on every layout."""
    if options.precision.compile and options.precision.stochastic_rounding == "all":
        raise UserError(
            "--compile and --stochastic-rounding all exclude each other: layers that round at random cannot be compiled; "
            "leave one of them out"
        )


def unused_compile(options: Options) -> list[str]:
    both = options.precision.compile and options.precision.fp_exceptions
    return ["--compile has no effect: --fp-exceptions looks at single layers"] if both else []


def check_trackers(options: Options) -> None:
    if options.run.wandb and options.events.training and find_spec("wandb") is None:
        raise UserError("--wandb needs wandb, which is not installed: pip install 'conveyor[track]', or leave it out")


def check_span(span: int, topology: Topology) -> None:
    if topology.replicas % span:
        raise UserError(
            f"a batch-norm span of {span} does not divide {topology.replicas} replicas: "
            f"choose --bn-span from the divisors of {topology.replicas}"
        )


def check_averages(options: Options, events: HostEvents) -> None:
    """Refuse averages that cannot be made: before the first update, since they are made after the last."""
    asked = options.events
    if (asked.average_last or asked.average_decay) and asked.training and events.updates_per_checkpoint == 0:
        flag = "--average-last" if asked.average_last else "--average-decay"
        raise UserError(f"{flag} needs checkpoints to average: give --checkpoints-per-epoch more than 0")


def idle_lanes(lanes: int, group: int, options: Options) -> str:
    """A note about lanes without work: there are fewer groups of `group` slots than lanes, and none is cut."""
    if not lanes:
        return ""
    smaller = group > options.model.bn_span
    cure = "a lower --pass-slots would use them" if smaller else "fewer lanes do as well"
    return f"{lanes} of the lanes {'has' if lanes == 1 else 'have'} nothing to do, {cure}; "


def exactness(machine: Machine, own: bool, threads: int, usual: int, optimizer: str = "") -> str:
    """Whether other layouts of the run compute the same bits, and if not, why.

    `threads` of a worker may not be the `usual` ones: a launcher dealt out the cores.
    """
    if machine.accelerators:
        return "accelerators: equal to other layouts within rounding"
    if own:
        return "bit-identical to other layouts if your module's layers are"
    foreign = f" if {optimizer} treats each parameter by itself and draws nothing at random" if ":" in optimizer else ""
    return "bit-identical to any other layout" + (f" with --threads {threads}" if threads != usual else "") + foreign


def chosen_devices(options: Options) -> list[tuple[str, tuple[int, ...]]]:
    """(the option, the devices that it names)."""
    where = options.layout
    named = (("--device-ids", where.device_ids), ("--validation-device-ids", where.validation_device_ids))
    return [(flag, chosen) for flag, chosen in named if chosen]


def unused_devices(options: Options, machine: Machine) -> list[str]:
    chosen = [f"{flag} {' '.join(map(str, numbers))}" for flag, numbers in chosen_devices(options)]
    if machine.accelerators or not chosen:
        return []
    why = "the run is on the CPU (--device cpu)" if options.layout.device == "cpu" else "the run is on the CPU"
    return [f"{' and '.join(chosen)} {'have' if len(chosen) > 1 else 'has'} no effect: {why}"]


def no_interpolation(options: Options, data: DatasetInfo) -> list[str]:
    if options.data.interpolation is None or data.kind == "files":
        return []
    return [f"--interpolation {options.data.interpolation} has no effect: the images of {data.name} are no photographs"]


def held_out(data: DatasetInfo, options: Options) -> list[str]:
    folder = datasets.data_dir(options.data)
    if data.name != "folder" or folder is None or options.data.hold_out == 1 or options.data.folds is not None:
        return []
    if not is_plain(folder) and not (divide.is_listed(folder) and divide.listing(folder, options.data, 0.1).held_out):
        return []
    return [
        f"{folder} has no validation set of its own: {data.validation_images} of its images are held out (--hold-out)"
    ]


def made_up_images(count: int) -> list[str]:
    if not count:
        return []
    return [f"validation is on the {count} different images of made-up data (--max-validation-images)"]


def dropped_images(data: DatasetInfo, topology: Topology, length: Length, options: Options) -> list[str]:
    if not options.events.training or options.length.updates_per_epoch is not None or data.kind == "none":
        return []
    dropped = data.train_images - length.updates_per_epoch * topology.global_batch
    if dropped <= 0:
        return []
    fill, sit, others = ("does", "sits", "another one") if dropped == 1 else ("do", "sit", "other ones")
    note = f"{dropped} of {data.train_images} images {fill} not fill a global batch of {topology.global_batch} and {sit} out"
    return [f"{note} each epoch ({others} each time)"]


def few_images(options: Options, data: DatasetInfo, *, own: bool) -> list[str]:
    """The advice to fine-tune, where there are too few images for training from random weights."""
    begun = options.model.weights or options.run.checkpoint_path or own or options.run.resume == "auto"
    if begun or data.name != "folder" or data.train_images >= FEW_IMAGES or not options.events.training:
        return []
    count = "1 photograph is" if data.train_images == 1 else f"{data.train_images:,} photographs are"
    named = options.model.model if is_library(options.model.model) else ADVISED
    advice = f"add --pretrained {named} to start from weights that know photographs already"
    return [f"{count} few to learn from nothing: {advice}"]


def random_weights(options: Options) -> str | None:
    """The note for a validation of untrained weights."""
    trained = options.events.training or options.run.checkpoint_path or options.model.weights
    return None if trained else "random weights are validated: no checkpoint is given"
