"""Checks of a run before anything is started, and notes for its user: one sentence each."""

import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from conveyor.data import catalogue as datasets
from conveyor.data.catalogue import DatasetInfo
from conveyor.data.formats import divide
from conveyor.data.formats.folders import is_plain, split_folder
from conveyor.data.progressive_size import parse_progressive
from conveyor.data.subject import Subject
from conveyor.errors import UserError
from conveyor.layout import Machine, usable_memory
from conveyor.models.library_models import is_library
from conveyor.monitor.run_files import some
from conveyor.options import Options, specs
from conveyor.options.units import jitter_reaches, many
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


def unused(options: Options, data: DatasetInfo) -> Iterator[str]:
    """Options without effect beside the others."""
    chosen = options.optimizer
    if options.data.interpolation is not None and data.kind != "files":
        yield f"--interpolation {options.data.interpolation} has no effect: the images of {data.name} are no photographs"
    folder = datasets.data_dir(options.data)
    if options.data.shuffle == "shards" and folder is not None and is_plain(folder):
        yield "--shuffle shards has no effect: class folders have no shards, and the whole set is shuffled"
    if options.data.balanced_sampling and options.data.shuffle != "full":
        yield f"--shuffle {options.data.shuffle} has no effect: --balanced-sampling makes the order"
    if chosen.bce_threshold is not None and chosen.loss != "bce" and not options.data.multi_label:
        yield "--bce-threshold has no effect: it belongs to --loss bce"
    names = ("distillation", "teacher_temperature", "teacher_share")
    given = [specs()[name].flag for name in names if name in options.changed()]
    if given and chosen.teacher is None:
        yield f"{', '.join(given)}: no effect without --teacher: there is no distillation"
    elif chosen.distillation == "hard" and chosen.teacher_temperature != 1:
        yield "--teacher-temperature has no effect: hard distillation takes the teacher's best class"
    names = ("half_type", "half_partials", "saturate")
    given = [specs()[name].flag for name in names if name in options.changed()]
    if given and not options.precision.is_half:
        yield f"{', '.join(given)}: no effect at --precision {options.precision.precision}, which has no half numbers"
    if options.precision.compile and options.precision.fp_exceptions:
        yield "--compile has no effect: --fp-exceptions looks at single layers"


def check_trackers(options: Options) -> None:
    if options.run.wandb and options.events.training and find_spec("wandb") is None:
        raise UserError("--wandb needs wandb, which is not installed: pip install 'conveyor[track]', or leave it out")


def check_span(span: int, topology: Topology) -> None:
    if topology.replicas % span:
        raise UserError(
            f"a batch-norm span of {span} does not divide {many(topology.replicas, 'replica')}: "
            f"choose --bn-span from the divisors of {topology.replicas}"
        )


def check_memory(about: Subject, micro_batch: int) -> None:
    """Refuse a micro-batch whose input alone is more than this machine holds."""
    needed = 4 * math.prod(about.shape(micro_batch))
    if needed > usable_memory():
        raise UserError(
            f"a micro-batch of {many(micro_batch, 'image')} of {about.image_size} pixels needs {needed / 2**30:,.0f} GiB before the first layer, and this "
            f"machine has {usable_memory() / 2**30:,.0f}: choose a smaller --image-size or --micro-batch-size"
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


def exactness(
    machine: Machine, own: bool, threads: int, usual: int, optimizer: str = "", model: str | None = None
) -> str:
    """Whether other layouts of the run compute the same bits, and if not, why.

    `threads` of a worker may not be the `usual` ones: a launcher dealt out the cores.
    """
    if machine.accelerators:
        return "accelerators: equal to other layouts within rounding"
    if own or ":" in (model or ""):
        return "bit-identical to other layouts if your module's layers are"
    foreign = f" if {optimizer} treats each parameter by itself and draws nothing at random" if ":" in optimizer else ""
    # Inside a block of a library an image may cross a cut in another order of memory, which rounds differently.
    others = "layout of depth 1" if is_library(model) else "layout"
    return f"bit-identical to any other {others}" + (f" with --threads {threads}" if threads != usual else "") + foreign


def chosen_devices(options: Options) -> list[tuple[str, tuple[int, ...]]]:
    """(the option, the devices that it names)."""
    where = options.layout
    named = (("--device-ids", where.device_ids), ("--validation-device-ids", where.validation_device_ids))
    return [(flag, chosen) for flag, chosen in named if chosen]


def unused_devices(options: Options, machine: Machine) -> Iterator[str]:
    chosen = [f"{flag} {' '.join(map(str, numbers))}" for flag, numbers in chosen_devices(options)]
    if chosen and not machine.accelerators:
        why = "the run is on the CPU (--device cpu)" if options.layout.device == "cpu" else "the run is on the CPU"
        yield f"{' and '.join(chosen)} {'have' if len(chosen) > 1 else 'has'} no effect: {why}"


def odd_data(options: Options, data: DatasetInfo) -> Iterator[str]:
    """A folder that is not read, and classes with which training goes well and means little: one alone, or without a name."""
    folder, outputs = options.data.data_dir, options.model.num_classes or data.num_classes
    if folder is not None and data.name == "digits":
        yield f"--data-dir {folder} has no effect: the digits are embedded; leave out --data digits to use the folder"
    if data.num_classes == 1 and not options.data.multi_label:
        yield "there is one class alone: every answer will be right, and nothing is learnt; add another class"
    if data.class_names and outputs > data.num_classes:
        more = f"--num-classes {outputs} is more than the {data.num_classes} classes of {data.name}"
        yield f"{more}: answers will be numbers without names; leave it out to keep the names"


def validation_set(options: Options, data: DatasetInfo) -> Iterator[str]:
    """What to know of the validation images of a folder: that they are test/, that classes have none, that they are held out."""
    folder = datasets.data_dir(options.data)
    if data.name != "folder" or folder is None or options.data.folds is not None:
        return
    listed = divide.is_listed(folder)
    split = split_folder(folder, "validation") if options.events.training and folder.is_dir() and not listed else None
    if split is not None and divide.records_folder(folder) is None:
        if split.name.lower() == "test":
            yield f"{split} is the validation set, so the best checkpoint is chosen by it: keep a test set elsewhere"
        listing = divide.listing(folder, options.data, datasets.hold_out(options.data, data))
        there = {label for _, label in listing.files.get("validation", ())}
        absent = [name for number, name in enumerate(listing.classes) if number not in there]
        if there and absent:
            yield f"{split} has no images of {some(absent)}: nothing is known of how well they are told"
    if options.data.hold_out != 1 and (
        is_plain(folder) or (listed and divide.listing(folder, options.data, 0.1).held_out)
    ):
        yield f"{folder} has no validation set of its own: {data.validation_images} of its images are held out (--hold-out)"


def absent_classes(options: Options, data: DatasetInfo) -> Iterator[str]:
    """Classes of which the first images of a set have none: class folders are read one after the other."""
    asked, folder = options.data, datasets.data_dir(options.data)
    limits = {
        "train": ("--max-train-images or --data-percentage", data.train_images),
        "validation": ("--max-validation-images", data.validation_images),
    }
    if data.kind != "files" or folder is None or not folder.exists() or asked.generated_data or asked.synthetic_data:
        return
    if not (divide.is_listed(folder) or is_plain(folder) or split_folder(folder, "train")) or divide.records_folder(
        folder
    ):
        return
    listing = divide.listing(folder, asked, datasets.hold_out(asked, data))
    for split, (flag, count) in limits.items() if not listing.label_sets else ():
        labels = [label for _, label in listing.files.get(split, ())]
        gone = set(labels) - set(labels[:count])
        if gone and (split == "validation" or options.events.training):
            names = [name for number, name in enumerate(listing.classes) if number in gone]
            yield f"{flag}: the first {count} of {len(labels)} images for {split} have none of {some(names)}"


def dropped_images(data: DatasetInfo, topology: Topology, length: Length, options: Options) -> Iterator[str]:
    if not options.events.training or options.length.updates_per_epoch is not None or data.kind == "none":
        return
    dropped = data.train_images - length.updates_per_epoch * topology.global_batch
    if dropped > 0:
        fill, sit, others = ("does", "sits", "another one") if dropped == 1 else ("do", "sit", "other ones")
        note = f"{dropped} of {data.train_images} images {fill} not fill a global batch of {topology.global_batch} and {sit} out"
        yield f"{note} each epoch ({others} each time)"


def unused_time(options: Options, length: Length, warmup: int) -> Iterator[str]:
    """Notes about what begins, or would be reached, only after the run's last update."""
    if not options.events.training or not length.epochs:
        return
    if not length.updates_total:
        yield f"--epochs {float(length.epochs):g} is less than one update: nothing is trained; give more, or --updates"
        return
    for first, size in parse_progressive(options.data.progressive_image_size):
        if first >= length.epochs:
            ends = f"the run ends after {many(float(length.epochs), 'epoch', '.4g')}"
            yield f"--progressive-image-size {first}:{size} has no effect: {ends}"
    if warmup > length.updates_total:
        longer = f"longer than the run of {many(length.updates_total, 'update')}"
        yield f"--warmup {options.schedule.warmup} is {longer}: the rate never reaches --learning-rate"


def _begun(options: Options) -> bool:
    """Whether a run begins with weights that were trained before."""
    return bool(options.model.weights or options.run.checkpoint_path or options.run.resume == "auto")


def random_start(options: Options, data: DatasetInfo) -> Iterator[str]:
    """What random weights are no good for: to be frozen, and to learn from few images."""
    if _begun(options):
        return
    if options.optimizer.freeze != "none":
        yield "--freeze backbone leaves random weights as they are: add --pretrained or --weights to start from trained ones"
    if data.name == "folder" and data.train_images < FEW_IMAGES and options.events.training:
        count = "1 photograph is" if data.train_images == 1 else f"{data.train_images:,} photographs are"
        named = options.model.model if is_library(options.model.model) else ADVISED
        advice = f"add --pretrained {named} to start from weights that know photographs already"
        yield f"{count} few to learn from nothing: {advice}"


def random_weights(options: Options) -> str | None:
    """The note for a validation of untrained weights."""
    trained = options.events.training or options.run.checkpoint_path or options.model.weights
    return None if trained else "random weights are validated: no checkpoint is given"
