"""How weights are updated, and the learning rate over time."""

from dataclasses import dataclass
from fractions import Fraction

from conveyor.errors import UserError
from conveyor.options.field import option
from conveyor.options.units import OPTIMIZERS, Duration, named_number, optimizer_name, rate_factor

DEFAULT_RMSPROP_DECAY = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerOptions:
    """The update rule."""

    optimizer: str = option(
        "momentum",
        "Update rule; or the class of an optimiser like torch's, as MODULE:CLASS or FILE.py:CLASS (torch.optim:NAdam), which "
        "gets --momentum, --nesterov, --beta1, --beta2 and --optimizer-epsilon where it takes them.",
        choices=OPTIMIZERS,
        read=optimizer_name,
    )
    optimizer_arguments: tuple[str, ...] = option(
        (), "Further arguments of --optimizer MODULE:CLASS, as NAME=NUMBER such as rho=0.9.", read=named_number
    )
    momentum: float = option(0.9, "Momentum of momentum, rmsprop, lars and muon.", minimum=0.0, below=1.0)
    nesterov: bool = option(False, "Nesterov's form of momentum.")
    momentum_form: str = option(
        "gradient",
        "gradient: m = mu m + g, w -= lr m; rate: m = mu m + lr g, w -= m. They differ while the rate changes.",
        choices=("gradient", "rate"),
    )
    beta1: float = option(0.9, "First decay of adam, adamw and lamb.", minimum=0.0, below=1.0)
    beta2: float = option(0.999, "Second decay of adam, adamw and lamb.", minimum=0.0, below=1.0)
    optimizer_epsilon: float | None = option(
        None, "Epsilon of rmsprop (0.001), adam, adamw (1e-8), lamb (1e-6) or lars (0).", minimum=0.0
    )
    rmsprop_decay: float | None = option(
        None, f"Decay of the squared gradient's average; default {DEFAULT_RMSPROP_DECAY}.", minimum=0.0, below=1.0
    )
    rmsprop_decay_per_sample: float | None = option(None, "rmsprop decay = 1 - this x global batch.", above=0.0)
    rmsprop_form: str = option(
        "tensorflow", "Epsilon inside the root (tensorflow) or outside it (torch).", choices=("tensorflow", "torch")
    )
    lars_eta: float = option(0.001, "Trust coefficient of LARS.", above=0.0)
    weight_decay: float = option(0.0, "Decoupled: w -= lr (O(g) + lambda w).", minimum=0.0, aliases=("wd",))
    l2_regularization: float = option(0.0, "In the gradient: w -= lr O(g + lambda w).", minimum=0.0)
    decay_exclude: tuple[str, ...] = option(
        (),
        "No decay for parameters whose name contains one of these (^fc: begins so); norm, bias and 1d are kinds.",
    )
    train_only: tuple[str, ...] = option(
        (),
        "Train these parameters alone (names as in --decay-exclude, such as ^layer4 ^fc); the others keep their values. "
        "The running statistics of all norms go on.",
    )
    frozen_norms: bool = option(
        False,
        "Batch norms that --train-only leaves out normalise with their running statistics, which stay as they are.",
    )
    freeze: str = option(
        "none",
        "backbone: only the last layer is trained; all others keep their weights and their norms' statistics.",
        choices=("none", "backbone"),
    )
    unfreeze_at: Duration | None = option(
        None, "When --freeze or --train-only ends, such as 2ep: all are trained from there, the optimiser begins anew."
    )
    muon_normalize: bool = option(
        False, "Scale filters to the norm sqrt(rows) before each muon step; for filters that a norm follows."
    )
    lars_exclude: tuple[str, ...] = option(("norm", "bias"), "No adaptation and no decay by LARS for these.")
    clip_norm: float | None = option(None, "Clip the gradient to this global norm.", above=0.0, aliases=("clip_grad",))
    loss: str | None = option(
        None,
        "cross-entropy over the classes; bce: binary cross entropy of each class, its mean over the classes. Default: by --task.",
        choices=("cross-entropy", "bce"),
    )
    bce_threshold: float | None = option(
        None,
        "With --loss bce: a class whose share of the mixed and smoothed label is above this is present, the others absent.",
        minimum=0.0,
        below=1.0,
    )
    focal_gamma: float = option(0.0, "Focal loss: (1 - p)^gamma times the loss of each class; 0 is off.", minimum=0.0)
    class_weights: str | None = option(
        None,
        "Weights of the classes in the loss: balanced (images / (classes x images of the class)), or a CSV file of lines "
        "CLASS,WEIGHT. With --loss bce they weigh the classes that are present.",
        metavar="balanced|FILE",
    )
    teacher: str | None = option(
        None,
        "Distillation: a run, a checkpoint or an export in torch's format whose answers to the same images are learnt, too.",
        metavar="RUN|EXPORT",
    )
    distillation: str = option(
        "soft",
        "soft: the teacher's probabilities at --teacher-temperature; hard: its best class.",
        choices=("soft", "hard"),
    )
    teacher_temperature: float = option(
        1.0, "Temperature T of soft distillation, whose loss is scaled by T^2.", above=0.0
    )
    teacher_share: float = option(
        0.5, "Share of the teacher in the loss; the labels have the rest.", minimum=0.0, maximum=1.0
    )
    label_smoothing: float = option(0.0, "Label smoothing.", minimum=0.0, maximum=1.0)
    smoothing_form: str = option(
        "uniform", "uniform: e/C for every class; others: e/(C-1) for each wrong class.", choices=("uniform", "others")
    )
    ema_decay: float | None = option(
        None, "Keep an exponential average of the weights during training.", minimum=0.0, below=1.0
    )
    ema_warmup: Duration | None = option(
        None,
        "Time in which --ema-decay grows: after t of u updates it is decay x (1 - exp(-t / u)). Default: t / (9 + t) as long "
        "as that is less.",
    )

    def decay_of_squares(self, global_batch: int) -> float:
        """Decay of rmsprop's average of squared gradients, as given or 1 - `rmsprop_decay_per_sample` x global batch."""
        per_sample = self.rmsprop_decay_per_sample
        if per_sample is None:
            return DEFAULT_RMSPROP_DECAY if self.rmsprop_decay is None else self.rmsprop_decay
        decay = 1 - per_sample * global_batch
        if decay < 0:
            raise UserError(
                f"the rmsprop decay 1 - {per_sample:g} x global batch {global_batch} = {decay:g} is negative: "
                "lower --rmsprop-decay-per-sample or the batch"
            )
        return decay


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """The learning rate over time."""

    learning_rate: float = option(0.1, "Peak learning rate.", minimum=0.0, aliases=("lr",))
    lr_reference_batch: int | None = option(
        None, "The rate is meant for this batch: peak = rate x global batch / reference.", minimum=1
    )
    lr_factors: tuple[str, ...] = option(
        (),
        "Other rates for some parameters, as NAME:FACTOR pairs such as bias:64 head:0.5 (names as in --decay-exclude); "
        "their decay per update stays the same.",
        read=rate_factor,
    )
    layer_decay: float = option(
        1.0,
        "Smaller rates towards the input: x this for each block that stands below the last layer.",
        above=0.0,
        maximum=1.0,
    )
    lr_schedule: str = option(
        "cosine", "Form of the schedule.", choices=("constant", "stepped", "cosine", "exponential", "polynomial")
    )
    lr_drops: tuple[Duration, ...] = option((), "When a stepped rate drops, such as 30ep 60ep or 50% 75%.")
    lr_decay: float = option(0.1, "Factor of each drop (stepped) or of each decay (exponential).", above=0.0)
    lr_values: tuple[float, ...] = option(
        (), "Stepped: factors of the peak rate after each drop, instead of powers of --lr-decay.", minimum=0.0
    )
    lr_drop_form: str = option(
        "reached",
        "reached: a drop at 30up acts from update 30 on; passed: from update 31 on.",
        choices=("reached", "passed"),
    )
    lr_decay_every: Duration | None = option(None, "Exponential: time between decays; default 2.4 epochs.")
    lr_power: float = option(2.0, "Power of the polynomial schedule.", minimum=0.0)
    lr_end: float = option(0.0, "Final rate as a share of the peak (cosine, polynomial).", minimum=0.0)
    lr_horizon: Duration | None = option(
        None, "When cosine or polynomial reach their end; default: the end of the run."
    )
    lr_every: Duration = option(
        Duration(Fraction(1), "up"),
        "The rate is evaluated at multiples of this (1up: at every update; 1ep: staircase).",
    )
    warmup: Duration = option(Duration(Fraction(0), "ep"), "Linear warm-up, such as 5ep, 500up or 10%.")
    warmup_mode: str = option(
        "mask",
        "mask: the schedule counts the warm-up's updates too; shift: it counts from the end of the warm-up.",
        choices=("mask", "shift"),
    )
    warmup_form: str = option(
        "from-zero",
        "from-zero: u/w; from-first: (u+1)/(w+1); epochs: (epoch+1)/w.",
        choices=("from-zero", "from-first", "epochs"),
    )
