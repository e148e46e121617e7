"""The options of `conveyor.train` and `conveyor.validate` as keyword arguments, for editors and type checkers.

Made by scripts/typed_options.py from the declarations; a test keeps it current.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from conveyor.options.typed_data import DataOptions


class TrainOptions(DataOptions, total=False):
    """Every option by its name; what is left out has its default."""

    image_size: int | None
    """Height and width of the input."""
    num_classes: int | None
    """Classes; default: by data set."""
    in_channels: int | None
    """Input channels; default: by data set."""
    weights: str | Path | None
    """Start from these weights."""
    replace_head: bool
    """Accept --weights with another number of classes and start with a new head."""
    pretrained: str | None
    """Fine-tune published weights."""
    weights_dir: str | Path | None
    """Folder with files of weights that --pretrained names."""
    norm: Literal["batch", "group", "proxy", "none"] | None
    """Normalisation layers."""
    norm_groups: int | None
    """Groups of group norm (capped at the channel count)."""
    norm_group_channels: int | None
    """Channels per group of group norm, instead of --norm-groups."""
    norm_epsilon: float | None
    """Epsilon of the norms."""
    norm_momentum: float | None
    """Share of the new statistics in batch norm's running ones (0.1."""
    stable_norm: bool
    """Norm statistics in two passes and float32."""
    bn_span: int
    """Batch-norm statistics over this many neighbouring replicas. [1]"""
    zero_init_gamma: Literal["none", "all", "unprojected", "projection"] | None
    """Which last norms of residual blocks start at zero."""
    init: Literal["torch", "tensorflow", "glorot-channels"] | None
    """Initialisation."""
    shortcut: Literal["A", "B", "C"] | None
    """Residual shortcut where the shape changes."""
    project_first: bool | None
    """Projection also in the first stage of basic ResNets."""
    stride_in_1x1: bool | None
    """Bottleneck stride on the first 1x1 convolution (v1) instead of the 3x3 (v1.5)."""
    group_dim: int | None
    """Channels per convolution group (EfficientNet."""
    cardinality: int | None
    """Convolution groups of ResNeXt."""
    wide: bool | None
    """The wide variant of the CIFAR bottleneck series."""
    expand_ratio: int | None
    """Expansion ratio of EfficientNet and MobileNet blocks."""
    squeeze_excite: bool | None
    """Squeeze-and-excitation in EfficientNet."""
    activation: Literal["swish", "relu"] | None
    """Activation of EfficientNet."""
    dropout: float | None
    """Dropout before the classifier."""
    survival: float | None
    """Stochastic depth."""
    width_coefficient: float | None
    """Width multiplier."""
    depth_coefficient: float | None
    """Depth multiplier."""
    depth_divisor: int | None
    """Channel counts are rounded to multiples of this."""
    top_width: int | None
    """Channels of the last convolution of EfficientNet."""
    padding: Literal["symmetric", "same"] | None
    """Padding of strided EfficientNet and MobileNet convolutions."""
    bypass: bool | None
    """Identity around the SqueezeNet fire blocks whose widths agree."""
    proxy_epsilon: float | None
    """Epsilon of proxy norm."""
    micro_batch_size: int
    """Samples of one forward and backward pass. [32]"""
    accumulation: int | None
    """Micro-batches accumulated by each replica before an update."""
    global_batch_size: int | None
    """Samples per update, instead of --accumulation."""
    replicas: int
    """Data-parallel copies. [1]"""
    stages: int | None
    """Pipeline stages."""
    splits: Sequence[str]
    """First layer of each further stage (names as `conveyor models show` prints them, or regular expressions), or
    auto."""
    pipeline_schedule: Literal["gpipe", "1f1b", "sequential", "interleaved-1f1b", "looped-bfs", "zero-bubble"]
    """gpipe: all forwards, then all backwards. [gpipe]"""
    device_mapping: Sequence[int]
    """Worker of the lane that runs each stage."""
    split_include: Sequence[str]
    """Automatic splits only at names containing one of these."""
    split_exclude: Sequence[str]
    """Automatic splits never at names containing one of these."""
    pass_slots: str
    """Slots (micro-batches) that share one pass through the network, or auto. [auto]"""
    recompute: Sequence[str]
    """Recompute activations in the backward pass."""
    layout: str
    """Worker processes as LANESxDEPTH, such as 2x1, or auto. [auto]"""
    device: Literal["auto", "cpu", "cuda"]
    """auto, cpu or cuda. [auto]"""
    device_ids: Sequence[int]
    """Devices to use; default: all."""
    validation_device_ids: Sequence[int]
    """Devices on which training validates."""
    threads: int | None
    """Threads of each worker."""
    bucket_size: str
    """Gradients are reduced in buckets of this size while backward runs. [25MiB]"""
    pipelined_validation: bool
    """Validate with the training's stages instead of folded."""
    max_restarts: int
    """How often a job goes on from its last checkpoint after a worker died. [3]"""
    grace: int
    """Within this time after SIGTERM, SIGUSR1, SIGHUP or Ctrl-C the run is saved. [20s]"""
    precision: Literal["32.32", "16.32", "16.16", "bf16", "fp16"]
    """Number formats, COMPUTE.MASTER. [32.32]"""
    half_type: Literal["float16", "bfloat16"]
    """The 16-bit format. [float16]"""
    half_partials: bool
    """Partial sums of convolutions in half precision too."""
    stochastic_rounding: Literal["off", "weights", "all"]
    """Round at random in proportion to the distance. [off]"""
    loss_scale: str
    """A number; auto (halved on overflow, doubled after a while). [1]"""
    saturate: bool
    """Clamp to the largest half value instead of infinity."""
    tf32: bool
    """On a GPU: operands of float32 products rounded to TF32, several times as fast."""
    compile: bool
    """The blocks' training passes through torch.compile."""
    fp_exceptions: bool
    """Stop at the first value that is not finite and name the layer."""
    optimizer: Literal["sgd", "momentum", "rmsprop", "adam", "adamw", "lars", "lamb", "muon"]
    """Update rule. [momentum]"""
    optimizer_arguments: Sequence[str]
    """Further arguments of --optimizer MODULE:CLASS, as NAME=NUMBER such as rho=0.9."""
    momentum: float
    """Momentum of momentum, rmsprop, lars and muon. [0.9]"""
    nesterov: bool
    """Nesterov's form of momentum."""
    momentum_form: Literal["gradient", "rate"]
    """gradient: m = mu m + g, w -= lr m. [gradient]"""
    beta1: float
    """First decay of adam, adamw and lamb. [0.9]"""
    beta2: float
    """Second decay of adam, adamw and lamb. [0.999]"""
    optimizer_epsilon: float | None
    """Epsilon of rmsprop (0.001), adam, adamw (1e-8), lamb (1e-6) or lars (0)."""
    rmsprop_decay: float | None
    """Decay of the squared gradient's average."""
    rmsprop_decay_per_sample: float | None
    """rmsprop decay = 1 - this x global batch."""
    rmsprop_form: Literal["tensorflow", "torch"]
    """Epsilon inside the root (tensorflow) or outside it (torch). [tensorflow]"""
    lars_eta: float
    """Trust coefficient of LARS. [0.001]"""
    weight_decay: float
    """Decoupled: w -= lr (O(g) + lambda w). [0.0]"""
    l2_regularization: float
    """In the gradient: w -= lr O(g + lambda w). [0.0]"""
    decay_exclude: Sequence[str]
    """No decay for parameters whose name contains one of these (^fc."""
    train_only: Sequence[str]
    """Train these parameters alone (names as in --decay-exclude, such as ^layer4 ^fc)."""
    frozen_norms: bool
    """Batch norms that --train-only leaves out normalise with their running statistics, which stay as they are."""
    freeze: Literal["none", "backbone"]
    """backbone: only the last layer is trained. [none]"""
    unfreeze_at: str | float | None
    """When --freeze or --train-only ends, such as 2ep."""
    muon_normalize: bool
    """Scale filters to the norm sqrt(rows) before each muon step."""
    lars_exclude: Sequence[str]
    """No adaptation and no decay by LARS for these. [norm bias]"""
    clip_norm: float | None
    """Clip the gradient to this global norm."""
    loss: Literal["cross-entropy", "bce"] | None
    """cross-entropy over the classes."""
    bce_threshold: float | None
    """With --loss bce."""
    focal_gamma: float
    """Focal loss: (1 - p)^gamma times the loss of each class. [0.0]"""
    class_weights: str | None
    """Weights of the classes in the loss."""
    teacher: str | None
    """Distillation."""
    distillation: Literal["soft", "hard"]
    """soft: the teacher's probabilities at --teacher-temperature. [soft]"""
    teacher_temperature: float
    """Temperature T of soft distillation, whose loss is scaled by T^2. [1.0]"""
    teacher_share: float
    """Share of the teacher in the loss. [0.5]"""
    label_smoothing: float
    """Label smoothing. [0.0]"""
    smoothing_form: Literal["uniform", "others"]
    """uniform: e/C for every class. [uniform]"""
    ema_decay: float | None
    """Keep an exponential average of the weights during training."""
    ema_warmup: str | float | None
    """Time in which --ema-decay grows."""
    learning_rate: float
    """Peak learning rate. [0.1]"""
    lr_reference_batch: int | None
    """The rate is meant for this batch."""
    lr_factors: Sequence[str]
    """Other rates for some parameters, as NAME:FACTOR pairs such as bias:64 head:0.5 (names as in --decay-exclude)."""
    layer_decay: float
    """Smaller rates towards the input. [1.0]"""
    lr_schedule: Literal["constant", "stepped", "cosine", "exponential", "polynomial"]
    """Form of the schedule. [cosine]"""
    lr_drops: Sequence[str | float]
    """When a stepped rate drops, such as 30ep 60ep or 50% 75%."""
    lr_decay: float
    """Factor of each drop (stepped) or of each decay (exponential). [0.1]"""
    lr_values: Sequence[float]
    """Stepped: factors of the peak rate after each drop, instead of powers of --lr-decay."""
    lr_drop_form: Literal["reached", "passed"]
    """reached: a drop at 30up acts from update 30 on. [reached]"""
    lr_decay_every: str | float | None
    """Exponential."""
    lr_power: float
    """Power of the polynomial schedule. [2.0]"""
    lr_end: float
    """Final rate as a share of the peak (cosine, polynomial). [0.0]"""
    lr_horizon: str | float | None
    """When cosine or polynomial reach their end."""
    lr_every: str | float
    """The rate is evaluated at multiples of this (1up. [1up]"""
    warmup: str | float
    """Linear warm-up, such as 5ep, 500up or 10%. [0ep]"""
    warmup_mode: Literal["mask", "shift"]
    """mask: the schedule's clock runs during warm-up. [mask]"""
    warmup_form: Literal["from-zero", "from-first", "epochs"]
    """from-zero: u/w. [from-zero]"""
    epochs: float | None
    """Epochs; default: by data set."""
    updates: int | None
    """Weight updates, instead of --epochs."""
    epochs_by_images: bool
    """Count epochs in images."""
    updates_per_epoch: int | None
    """Length of an epoch."""
    max_time: str | None
    """Stop after this time (90s, 30min, 2h), with a checkpoint."""
    target_accuracy: float | None
    """Stop when validation reaches it."""
    patience: int | None
    """Stop after this many validations without a better one."""
    logs_per_epoch: str | float
    """Log points per epoch. [1]"""
    updates_per_log: int | None
    """Updates between log points, instead of --logs-per-epoch."""
    checkpoints_per_epoch: str | float
    """Checkpoints per epoch; 0 none. [1]"""
    updates_per_checkpoint: int | None
    """Updates between checkpoints, instead of --checkpoints-per-epoch."""
    first_checkpoint_epoch: float
    """No checkpoint before this epoch. [0.0]"""
    checkpoint_at_start: bool
    """Also save the initial weights."""
    checkpoint_every: str | None
    """Also save whenever this time has gone by, such as 10min."""
    checkpoints_to_keep: int | None
    """Keep the newest N besides the best."""
    updates_per_call: int | None
    """Updates between two returns to the host loop's events."""
    training: bool
    """Train; with --no-training only validate. [on]"""
    validation: bool
    """Measure the accuracy on the validation images. [on]"""
    validation_mode: Literal["during", "after"]
    """during: after whole epochs and at the end. [during]"""
    epochs_per_validation: int
    """Epochs between validations with --validation-mode during. [1]"""
    validation_batch_size: int | None
    """Samples per validation pass."""
    validation_replicas: int | None
    """Replicas of validation."""
    validation_views: Literal["one", "mirror", "mirror-shift"]
    """Views of each validation image whose answers are averaged. [one]"""
    repeat: int
    """Validate the set this many times (throughput). [1]"""
    latency: bool
    """Report latencies in validation."""
    average_last: Sequence[int]
    """After training, average the checkpoints of the last N epochs."""
    average_decay: Sequence[float]
    """After training, average all checkpoints exponentially with these decays."""
    answers: str | None
    """With validate."""
    best_by: Literal["accuracy", "accuracy_top5", "loss", "f1", "precision", "recall", "ece", "map", "f1_micro"] | None
    """What makes a checkpoint the best, and what --patience watches."""
    disable_metrics: bool
    """No loss and accuracy in training, for peak throughput."""
    seed: int
    """Seed of everything random. [0]"""
    run_dir: str | Path | None
    """Folder of the run."""
    checkpoint_path: str | Path | None
    """A checkpoint, a run, or a folder of checkpoints to start from or to validate."""
    resume: Literal["no", "auto"]
    """auto: go on where the run in --run-dir stopped, if it exists. [no]"""
    tensorboard: bool
    """Write TensorBoard event files when tensorboard is installed. [on]"""
    wandb: bool
    """Log to Weights & Biases."""
    wandb_project: str
    """Project in Weights & Biases. [conveyor]"""
    wandb_name: str | None
    """Run name in Weights & Biases."""
    wandb_tags: Sequence[str]
    """Tags in Weights & Biases."""
    weight_histograms: bool
    """Histograms of the weights after every epoch, in TensorBoard and Weights & Biases."""
    log_style: str
    """Form of the log lines and CSV columns. [conveyor]"""
    profile: Literal["off", "light", "layers", "full"]
    """Profile: off, light, layers or full. [off]"""
    profile_dir: str | Path | None
    """Where profiles go; default: the run folder."""
    report: bool
    """Write report.html at the end. [on]"""
    callback: Sequence[str]
    """Code of your own that hears of the run."""
    quiet: bool
    """Print results and errors only."""
    json_logs: bool
    """One JSON object per log point instead of text."""
