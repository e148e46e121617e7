"""How long a run lasts, when it logs, saves and validates, and where it keeps its results."""

from dataclasses import dataclass
from fractions import Fraction

from conveyor import hooks
from conveyor.options.field import option
from conveyor.options.units import seconds

METRICS = ("accuracy", "accuracy_top5", "loss", "f1", "precision", "recall", "ece", "map", "f1_micro")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthOptions:
    """When training ends."""

    epochs: float | None = option(None, "Epochs; default: by data set.", minimum=0.0)
    updates: int | None = option(None, "Weight updates, instead of --epochs.", minimum=1, aliases=("iterations",))
    epochs_by_images: bool = option(
        False, "Count epochs in images: updates in all = floor(images x epochs / global batch), leftovers included."
    )
    updates_per_epoch: int | None = option(None, "Length of an epoch; default: images / global batch.", minimum=1)
    max_time: str | None = option(None, "Stop after this time (90s, 30min, 2h), with a checkpoint.", read=seconds)
    target_accuracy: float | None = option(
        None, "Stop when validation reaches it.", unit="%", minimum=0.0, maximum=100.0
    )
    patience: int | None = option(None, "Stop after this many validations without a better one.", minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOptions:
    """When the loop logs, saves and validates."""

    logs_per_epoch: Fraction = option(
        Fraction(1), "Log points per epoch; 1/2 is every second epoch, 0 never.", changes_result=False
    )
    updates_per_log: int | None = option(
        None, "Updates between log points, instead of --logs-per-epoch.", minimum=1, changes_result=False
    )
    checkpoints_per_epoch: Fraction = option(Fraction(1), "Checkpoints per epoch; 0 none.", changes_result=False)
    updates_per_checkpoint: int | None = option(
        None, "Updates between checkpoints, instead of --checkpoints-per-epoch.", minimum=1, changes_result=False
    )
    first_checkpoint_epoch: float = option(0.0, "No checkpoint before this epoch.", minimum=0.0, changes_result=False)
    checkpoint_at_start: bool = option(False, "Also save the initial weights.", changes_result=False)
    checkpoint_every: str | None = option(
        None, "Also save whenever this time has gone by, such as 10min.", changes_result=False, read=seconds
    )
    checkpoints_to_keep: int | None = option(
        None, "Keep the newest N besides the best; default: all.", minimum=1, changes_result=False
    )
    updates_per_call: int | None = option(
        None,
        "Updates between two returns to the host loop's events; default: from the events.",
        minimum=1,
        changes_result=False,
    )
    training: bool = option(True, "Train; with --no-training only validate.")
    validation: bool = option(True, "Measure the accuracy on the validation images.", changes_result=False)
    validation_mode: str = option(
        "during",
        "during: after whole epochs and at the end; after: all checkpoints at the end.",
        choices=("during", "after"),
        changes_result=False,
    )
    epochs_per_validation: int = option(
        1, "Epochs between validations with --validation-mode during.", minimum=1, changes_result=False
    )
    validation_batch_size: int | None = option(
        None, "Samples per validation pass; default: the micro-batch.", minimum=1, changes_result=False
    )
    validation_replicas: int | None = option(
        None, "Replicas of validation; default: replicas x stages.", minimum=1, changes_result=False
    )
    validation_views: str = option(
        "one",
        "Views of each validation image whose answers are averaged: one; mirror (2 views); mirror-shift (6: also moved by "
        "a pixel, up and left or down and right). Costs as many passes; say so beside the accuracy.",
        choices=("one", "mirror", "mirror-shift"),
        changes_result=False,
    )
    repeat: int = option(1, "Validate the set this many times (throughput).", minimum=1, changes_result=False)
    latency: bool = option(False, "Report latencies in validation.", changes_result=False)
    average_last: tuple[int, ...] = option(
        (), "After training, average the checkpoints of the last N epochs.", minimum=1
    )
    average_decay: tuple[float, ...] = option(
        (), "After training, average all checkpoints exponentially with these decays.", minimum=0.0, below=1.0
    )
    answers: str | None = option(
        None,
        "With validate: write the answer to every image into this .csv or .parquet file: path, label, answer, confidence.",
        metavar="FILE",
        changes_result=False,
    )
    best_by: str | None = option(
        None,
        "What makes a checkpoint the best, and what --patience watches: a figure of validation. F1, precision and recall are "
        "means over classes, ece is the calibration error; the least loss and ece are best, else the largest. Default: "
        "accuracy, or with --task multi-label map, the mean average precision.",
        choices=METRICS,
    )
    disable_metrics: bool = option(
        False, "No loss and accuracy in training, for peak throughput.", changes_result=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Seed, folder, display and trackers."""

    seed: int = option(0, "Seed of everything random.", minimum=-(2**63), maximum=2**64 - 1)
    run_dir: str | None = option(
        None, "Folder of the run; default: runs/<model>-<data>-<time>.", changes_result=False, aliases=("out",)
    )
    checkpoint_path: str | None = option(
        None, "A checkpoint, a run, or a folder of checkpoints to start from or to validate."
    )
    resume: str = option(
        "no",
        "auto: go on where the run in --run-dir stopped, if it exists.",
        choices=("no", "auto"),
        changes_result=False,
    )
    tensorboard: bool = option(
        True, "Write TensorBoard event files when tensorboard is installed.", changes_result=False
    )
    wandb: bool = option(False, "Log to Weights & Biases.", changes_result=False)
    wandb_project: str = option("conveyor", "Project in Weights & Biases.", changes_result=False)
    wandb_name: str | None = option(None, "Run name in Weights & Biases.", changes_result=False)
    wandb_tags: tuple[str, ...] = option((), "Tags in Weights & Biases.", changes_result=False)
    weight_histograms: bool = option(
        False, "Histograms of the weights after every epoch, in TensorBoard and Weights & Biases.", changes_result=False
    )
    log_style: str = option(
        "conveyor",
        "Form of the log lines and CSV columns.",
        choices=("conveyor", *hooks.names("log style")),
        changes_result=False,
    )
    profile: str = option(
        "off", "Profile: off, light, layers or full.", choices=("off", "light", "layers", "full"), changes_result=False
    )
    profile_dir: str | None = option(None, "Where profiles go; default: the run folder.", changes_result=False)
    report: bool = option(True, "Write report.html at the end.", changes_result=False)
    callback: tuple[str, ...] = option(
        (), "Code of your own that is called at log points, validations, checkpoints and the end: FILE.py:NAME, a class or a function that makes one.",
        metavar="FILE.py:NAME", changes_result=False,
    )  # fmt: skip
    quiet: bool = option(False, "Print results and errors only.", changes_result=False)
    json_logs: bool = option(False, "One JSON object per log point instead of text.", changes_result=False)
