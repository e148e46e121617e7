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
    """Height and width of the input; default: by model and data."""
    num_classes: int | None
    """Classes; default: by data set."""
    in_channels: int | None
    """Input channels; default: by data set. Extra channels are zero."""
    weights: str | Path | None
    """Start from these weights: safetensors, a plain torch state dict, or a run."""
    replace_head: bool
    """Accept --weights with another number of classes and start with a new head."""
    pretrained: str | None
    """Fine-tune published weights: a name of timm's (tf_efficientnet_lite0, timm/convnext_atto), torchvision/NAME, an
    address or a file; looked for in --weights-dir and the caches of this machine, else fetched. Brings its model, its
    preprocessing, a new head and gentle rates."""
    weights_dir: str | Path | None
    """Folder with files of weights that --pretrained names."""
    norm: Literal["batch", "group", "proxy", "none"] | None
    """Normalisation layers: batch, group, proxy (group with proxy norm) or none."""
    norm_groups: int | None
    """Groups of group norm (capped at the channel count)."""
    norm_group_channels: int | None
    """Channels per group of group norm, instead of --norm-groups."""
    norm_epsilon: float | None
    """Epsilon of the norms."""
    norm_momentum: float | None
    """Share of the new statistics in batch norm's running ones (0.1: running = 0.9 running + 0.1 new)."""
    stable_norm: bool
    """Norm statistics in two passes and float32."""
    bn_span: int
    """Batch-norm statistics over this many neighbouring replicas. [1]"""
    zero_init_gamma: Literal["none", "all", "unprojected", "projection"] | None
    """Which last norms of residual blocks start at zero: none, all, unprojected (blocks without a projection), or
    projection (also the projection's norm)."""
    init: Literal["torch", "tensorflow", "glorot-channels"] | None
    """Initialisation: torch (the field's defaults), tensorflow (variance scaling, truncated normal) or glorot-
    channels."""
    shortcut: Literal["A", "B", "C"] | None
    """Residual shortcut where the shape changes: A (zero padding), B or C."""
    project_first: bool | None
    """Projection also in the first stage of basic ResNets."""
    stride_in_1x1: bool | None
    """Bottleneck stride on the first 1x1 convolution (v1) instead of the 3x3 (v1.5)."""
    group_dim: int | None
    """Channels per convolution group (EfficientNet: 1 is depthwise; ResNeXt: 4)."""
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
    """Stochastic depth: the probability with which the last residual block is kept; 1 is off."""
    width_coefficient: float | None
    """Width multiplier."""
    depth_coefficient: float | None
    """Depth multiplier."""
    depth_divisor: int | None
    """Channel counts are rounded to multiples of this."""
    top_width: int | None
    """Channels of the last convolution of EfficientNet."""
    padding: Literal["symmetric", "same"] | None
    """Padding of strided EfficientNet and MobileNet convolutions: symmetric, or same (TensorFlow's, for weights from
    there)."""
    bypass: bool | None
    """Identity around the SqueezeNet fire blocks whose widths agree."""
    proxy_epsilon: float | None
    """Epsilon of proxy norm."""
    micro_batch_size: int
    """Samples of one forward and backward pass. [32]"""
    accumulation: int | None
    """Micro-batches accumulated by each replica before an update; default 1."""
    global_batch_size: int | None
    """Samples per update, instead of --accumulation."""
    replicas: int
    """Data-parallel copies. [1]"""
    stages: int | None
    """Pipeline stages; default: number of splits + 1."""
    splits: Sequence[str]
    """First layer of each further stage (names as `conveyor models show` prints them, or regular expressions), or
    auto."""
    pipeline_schedule: Literal["gpipe", "1f1b", "sequential", "interleaved-1f1b", "looped-bfs", "zero-bubble"]
    """gpipe: all forwards, then all backwards; 1f1b: alternating; sequential: one micro-batch at a time;
    interleaved-1f1b, looped-bfs, zero-bubble: several stages for each worker in turn. [gpipe]"""
    device_mapping: Sequence[int]
    """Worker of the lane that runs each stage; default: one each."""
    split_include: Sequence[str]
    """Automatic splits only at names containing one of these."""
    split_exclude: Sequence[str]
    """Automatic splits never at names containing one of these."""
    pass_slots: str
    """Slots (micro-batches) that share one pass through the network, or auto: some when they are small. Part of the
    run: the same on every layout. [auto]"""
    recompute: Sequence[str]
    """Recompute activations in the backward pass: stage, block, or regular expressions over module names."""
    layout: str
    """Worker processes as LANESxDEPTH, such as 2x1, or auto. [auto]"""
    device: Literal["auto", "cpu", "cuda"]
    """auto, cpu or cuda. [auto]"""
    device_ids: Sequence[int]
    """Devices to use; default: all."""
    validation_device_ids: Sequence[int]
    """Devices on which training validates; default: its own."""
    threads: int | None
    """Threads of each worker; default: the cores divided among the groups of an update. A run that goes on keeps its
    number."""
    bucket_size: str
    """Gradients are reduced in buckets of this size while backward runs. [25MiB]"""
    pipelined_validation: bool
    """Validate with the training's stages instead of folded."""
    max_restarts: int
    """How often a job goes on from its last checkpoint after a worker died. [3]"""
    grace: int
    """Within this time after SIGTERM, SIGUSR1, SIGHUP or Ctrl-C the run is saved; an update that takes longer is given
    up. [20s]"""
    precision: Literal["32.32", "16.32", "16.16", "bf16", "fp16"]
    """Number formats, COMPUTE.MASTER: 32.32; 16.32 (half arithmetic, float32 weights); 16.16 (half throughout). bf16
    and fp16 are short for 16.32 with --half-type bfloat16 and float16. [32.32]"""
    half_type: Literal["float16", "bfloat16"]
    """The 16-bit format. [float16]"""
    half_partials: bool
    """Partial sums of convolutions in half precision too."""
    stochastic_rounding: Literal["off", "weights", "all"]
    """Round at random in proportion to the distance: off, weights, or all (activations too). [off]"""
    loss_scale: str
    """A number; auto (halved on overflow, doubled after a while); histogram; or 16..128 (doubling over the epochs).
    [1]"""
    saturate: bool
    """Clamp to the largest half value instead of infinity."""
    tf32: bool
    """On a GPU: operands of float32 products rounded to TF32, several times as fast; without it float32 is float32."""
    compile: bool
    """The blocks' training passes through torch.compile: needs a C++ compiler, on a GPU Triton. Rounds differently
    than without."""
    fp_exceptions: bool
    """Stop at the first value that is not finite and name the layer."""
    optimizer: Literal["sgd", "momentum", "rmsprop", "adam", "adamw", "lars", "lamb", "muon"]
    """Update rule; or the class of an optimiser like torch's, as MODULE:CLASS or FILE.py:CLASS (torch.optim:NAdam),
    which gets --momentum, --nesterov, --beta1, --beta2 and --optimizer-epsilon where it takes them. [momentum]"""
    optimizer_arguments: Sequence[str]
    """Further arguments of --optimizer MODULE:CLASS, as NAME=NUMBER such as rho=0.9."""
    momentum: float
    """Momentum of momentum, rmsprop, lars and muon. [0.9]"""
    nesterov: bool
    """Nesterov's form of momentum."""
    momentum_form: Literal["gradient", "rate"]
    """gradient: m = mu m + g, w -= lr m; rate: m = mu m + lr g, w -= m. They differ while the rate changes.
    [gradient]"""
    beta1: float
    """First decay of adam, adamw and lamb. [0.9]"""
    beta2: float
    """Second decay of adam, adamw and lamb. [0.999]"""
    optimizer_epsilon: float | None
    """Epsilon of rmsprop (0.001), adam, adamw (1e-8), lamb (1e-6) or lars (0)."""
    rmsprop_decay: float | None
    """Decay of the squared gradient's average; default 0.9."""
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
    """No decay for parameters whose name contains one of these (^fc: begins so); norm, bias and 1d are kinds."""
    train_only: Sequence[str]
    """Train these parameters alone (names as in --decay-exclude, such as ^layer4 ^fc); the others keep their values.
    The running statistics of all norms go on."""
    frozen_norms: bool
    """Batch norms that --train-only leaves out normalise with their running statistics, which stay as they are."""
    freeze: Literal["none", "backbone"]
    """backbone: only the last layer is trained; all others keep their weights and their norms' statistics. [none]"""
    unfreeze_at: str | float | None
    """When --freeze or --train-only ends, such as 2ep: all are trained from there, the optimiser begins anew."""
    muon_normalize: bool
    """Scale filters to the norm sqrt(rows) before each muon step; for filters that a norm follows."""
    lars_exclude: Sequence[str]
    """No adaptation and no decay by LARS for these. [norm bias]"""
    clip_norm: float | None
    """Clip the gradient to this global norm."""
    loss: Literal["cross-entropy", "bce"] | None
    """cross-entropy over the classes; bce: binary cross entropy of each class, its mean over the classes. Default: by
    --task."""
    bce_threshold: float | None
    """With --loss bce: a class whose share of the mixed and smoothed label is above this is present, the others
    absent."""
    focal_gamma: float
    """Focal loss: (1 - p)^gamma times the loss of each class; 0 is off. [0.0]"""
    class_weights: str | None
    """Weights of the classes in the loss: balanced (images / (classes x images of the class)), or a CSV file of lines
    CLASS,WEIGHT. With --loss bce they weigh the classes that are present."""
    teacher: str | None
    """Distillation: a run, a checkpoint or an export in torch's format whose answers to the same images are learnt,
    too."""
    distillation: Literal["soft", "hard"]
    """soft: the teacher's probabilities at --teacher-temperature; hard: its best class. [soft]"""
    teacher_temperature: float
    """Temperature T of soft distillation, whose loss is scaled by T^2. [1.0]"""
    teacher_share: float
    """Share of the teacher in the loss; the labels have the rest. [0.5]"""
    label_smoothing: float
    """Label smoothing. [0.0]"""
    smoothing_form: Literal["uniform", "others"]
    """uniform: e/C for every class; others: e/(C-1) for each wrong class. [uniform]"""
    ema_decay: float | None
    """Keep an exponential average of the weights during training."""
    ema_warmup: str | float | None
    """Time in which --ema-decay grows: after t of u updates it is decay x (1 - exp(-t / u)). Default: t / (9 + t) as
    long as that is less."""
    learning_rate: float
    """Peak learning rate. [0.1]"""
    lr_reference_batch: int | None
    """The rate is meant for this batch: peak = rate x global batch / reference."""
    lr_factors: Sequence[str]
    """Other rates for some parameters, as NAME:FACTOR pairs such as bias:64 head:0.5 (names as in --decay-exclude);
    their decay per update stays the same."""
    layer_decay: float
    """Smaller rates towards the input: x this for each block that stands below the last layer. [1.0]"""
    lr_schedule: Literal["constant", "stepped", "cosine", "exponential", "polynomial"]
    """Form of the schedule. [cosine]"""
    lr_drops: Sequence[str | float]
    """When a stepped rate drops, such as 30ep 60ep or 50% 75%."""
    lr_decay: float
    """Factor of each drop (stepped) or of each decay (exponential). [0.1]"""
    lr_values: Sequence[float]
    """Stepped: factors of the peak rate after each drop, instead of powers of --lr-decay."""
    lr_drop_form: Literal["reached", "passed"]
    """reached: a drop at 30up acts from update 30 on; passed: from update 31 on. [reached]"""
    lr_decay_every: str | float | None
    """Exponential: time between decays; default 2.4 epochs."""
    lr_power: float
    """Power of the polynomial schedule. [2.0]"""
    lr_end: float
    """Final rate as a share of the peak (cosine, polynomial). [0.0]"""
    lr_horizon: str | float | None
    """When cosine or polynomial reach their end; default: the end of the run."""
    lr_every: str | float
    """The rate is evaluated at multiples of this (1up: at every update; 1ep: staircase). [1up]"""
    warmup: str | float
    """Linear warm-up, such as 5ep, 500up or 10%. [0ep]"""
    warmup_mode: Literal["mask", "shift"]
    """mask: the schedule counts the warm-up's updates too; shift: it counts from the end of the warm-up. [mask]"""
    warmup_form: Literal["from-zero", "from-first", "epochs"]
    """from-zero: u/w; from-first: (u+1)/(w+1); epochs: (epoch+1)/w. [from-zero]"""
    epochs: float | None
    """Epochs; default: by data set."""
    updates: int | None
    """Weight updates, instead of --epochs."""
    epochs_by_images: bool
    """Count epochs in images: updates in all = floor(images x epochs / global batch), leftovers included."""
    updates_per_epoch: int | None
    """Length of an epoch; default: images / global batch."""
    max_time: str | None
    """Stop after this time (90s, 30min, 2h), with a checkpoint."""
    target_accuracy: float | None
    """Stop when validation reaches it."""
    patience: int | None
    """Stop after this many validations without a better one."""
    logs_per_epoch: str | float
    """Log points per epoch; 1/2 is every second epoch, 0 never. [1]"""
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
    """Keep the newest N besides the best; default: all."""
    updates_per_call: int | None
    """Updates between two returns to the host loop's events; default: from the events."""
    training: bool
    """Train; with --no-training only validate. [on]"""
    validation: bool
    """Measure the accuracy on the validation images. [on]"""
    validation_mode: Literal["during", "after"]
    """during: after whole epochs and at the end; after: all checkpoints at the end. [during]"""
    epochs_per_validation: int
    """Epochs between validations with --validation-mode during. [1]"""
    validation_batch_size: int | None
    """Samples per validation pass; default: the micro-batch."""
    validation_replicas: int | None
    """Replicas of validation; default: replicas x stages."""
    validation_views: Literal["one", "mirror", "mirror-shift"]
    """Views of each validation image whose answers are averaged: one; mirror (2 views); mirror-shift (6: also moved by
    a pixel, up and left or down and right). Costs as many passes; say so beside the accuracy. [one]"""
    repeat: int
    """Validate the set this many times (throughput). [1]"""
    latency: bool
    """Report latencies in validation."""
    average_last: Sequence[int]
    """After training, average the checkpoints of the last N epochs."""
    average_decay: Sequence[float]
    """After training, average all checkpoints exponentially with these decays."""
    answers: str | None
    """With validate: write the answer to every image into this .csv or .parquet file: path, label, answer,
    confidence."""
    best_by: Literal["accuracy", "accuracy_top5", "loss", "f1", "precision", "recall", "ece", "map", "f1_micro"] | None
    """What makes a checkpoint the best, and what --patience watches: a figure of validation. F1, precision and recall
    are means over classes, ece is the calibration error; the least loss and ece are best, else the largest. Default:
    accuracy, or with --task multi-label map, the mean average precision."""
    disable_metrics: bool
    """No loss and accuracy in training, for peak throughput."""
    seed: int
    """Seed of everything random. [0]"""
    run_dir: str | Path | None
    """Folder of the run; default: runs/<model>-<data>-<time>."""
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
    """Code of your own that is called at log points, validations, checkpoints and the end: FILE.py:NAME, a class or a
    function that makes one."""
    quiet: bool
    """Print results and errors only."""
    json_logs: bool
    """One JSON object per log point instead of text."""
