"""The options of a validation: what concerns updates is left out, because a validation has none."""

from collections.abc import Iterable

from conveyor.errors import UserError
from conveyor.options.options import Options, specs

KEPT_EVENTS = ("validation_batch_size", "validation_replicas", "validation_views", "repeat", "latency", "answers")
KEPT_BATCH = ("micro_batch_size", "replicas")
UPDATES_ONLY = ("optimizer", "schedule", "length")
"""Sections that a validation never reads."""
# fmt: off
OF_TRAINING = frozenset((
    "max_train_images", "data_percentage", "shuffle", "progressive_image_size", "mixup_alpha", "cutmix_lambda",
    "cutmix_lambda_high", "cutmix_skip_probability", "cutmix_draw", "mix_switch", "mix_on", "random_erasing", "repeated_augmentation", "balanced_sampling", "norm_momentum", "bn_span", "dropout", "survival",
    "loss_scale", "fp_exceptions", "bucket_size", "pipelined_validation", "validation_device_ids", "resume",
))
"""Options of the other sections that only an update, the images of one, or validation beside training depends on."""
OF_RECORDS = frozenset((
    "tensorboard", "wandb", "wandb_project", "wandb_name", "wandb_tags", "weight_histograms", "log_style", "profile",
    "profile_dir", "report",
))
"""What a run shows and writes besides its weights: a validation prints a table and writes validation.csv."""
AUGMENTATION = frozenset((
    "train_crop", "crop_padding", "crop_fill", "min_crop_area", "crop_overlap", "flip", "augment", "augment_magnitude",
    "augment_operations", "color_jitter",
))
"""How training images are changed; validation images only with `--validation-transform train`."""
# fmt: on
BEGINNING = frozenset(("init", "zero_init_gamma"))
"""What weights are before any are loaded."""


def without_updates(options: Options) -> Options:
    """`options` for a validation. Stages become replicas: every worker has the whole model and a part of the images."""
    unread = {name: spec.default for name, spec in specs().items() if not _is_read(options, name)}
    replicas = options.events.validation_replicas or options.batch.replicas * options.batch.devices_per_replica
    return options.updated({**unread, "training": False, "validation": True, "replicas": replicas})


def has_effect(name: str) -> bool:
    """Whether a validation may read this option."""
    section = specs()[name].section
    if section in ("batch", "events"):
        return name in (*KEPT_BATCH, *KEPT_EVENTS, "training", "validation")
    return section not in UPDATES_ONLY and name not in OF_TRAINING and name not in OF_RECORDS


def check_training(options: Options) -> None:
    """Refuse what only a validation of its own reads where there is training."""
    if options.events.training and options.events.repeat != 1:
        raise UserError(
            "--repeat has no effect in training: it repeats a validation, as in "
            f"conveyor validate --checkpoint-path RUN --repeat {options.events.repeat}"
        )
    if options.events.training and options.events.answers is not None:
        raise UserError("--answers has no effect in training: use conveyor validate RUN --answers FILE afterwards")


def typed_flag(name: str, value: object) -> str:
    """The option as it was typed to have this value: `--no-report`, not `--report`."""
    spec = specs()[name]
    return f"--no-{spec.flag[2:]}" if spec.kind.item is bool and not spec.coerce(value) else spec.flag


def notes_about(given: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """Notes about options without effect; `given` has each flag as typed, and the options of ours that it sets."""
    unused = [(flag, set(names)) for flag, names in given]
    unused = [(flag, names) for flag, names in unused if names and not any(map(has_effect, names))]
    records = [flag for flag, names in unused if names <= OF_RECORDS]
    updates = [flag for flag, names in unused if not names <= OF_RECORDS]
    found = [f"{', '.join(updates)}: a validation makes no updates, they have no effect"] if updates else []
    return found + (
        [f"{', '.join(records)}: a validation prints a table and writes validation.csv, they have no effect"]
        if records
        else []
    )


def _is_read(options: Options, name: str) -> bool:
    """Whether the validation of `options` depends on this one."""
    if name in AUGMENTATION:
        return options.data.validation_transform == "train"
    if name in BEGINNING:
        return options.run.checkpoint_path is None and options.model.weights is None
    if name == "stochastic_rounding":
        return options.precision.stochastic_rounding == "all"  # `weights` are rounded by updates
    return has_effect(name)
