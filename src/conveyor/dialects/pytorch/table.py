"""The options of the PyTorch programs: the early one (train.py of 2020) and the later one (version 3)."""

from conveyor.dialects.table import Table, row

# fmt: off
PLACEMENT = "it steers memory and code placement on the original hardware"
MODELS = (
    *(f"resnet{size}" for size in (18, 34, 50, 101, 152)),
    "resnext50",
    "resnext101",
    "mobilenet",
    "mobilenet-v3-small",
    "mobilenet-v3-large",
    *(f"efficientnet-b{size}" for size in range(8)),
)
BENCHMARK = ("run_benchmark",)
HOST = ("host_benchmark",)

CHOICE = (
    row("--config", ours="`--config`", about="named configuration of configs.yml"),
    row("--config-path", ours="a file for `--config`", about="default: configs.yml beside the script"),
    row("--model", "lower", "resnet18", choices=MODELS, ours="`--model`", about="resnet18"),
    row("--data", "lower", "cifar10", choices=("cifar10", "imagenet", "synthetic", "generated", "real"), ours="`--data`, `--synthetic-data`, `--generated-data`", about="cifar10; real is for run_benchmark.py"),
    row("--imagenet-data-path", ours="`--data-dir`", about="raw JPEG class folders in train and validation"),
    row("--iterations", "int", 100, ours="`--max-train-images` of generated data; `--repeat`", about="100", least=1),
    row("--seed", "int", to="seed", about="seed of everything"),
)
BATCH = (
    row("--batch-size --micro-batch-size", "int", 1, ours="`--micro-batch-size`", about="per replica and pass; 1", least=1),
    row("--gradient-accumulation", "int", 1, to="accumulation", about="1", least=1),
    row("--replicas", "int", 1, ours="`--replicas`", about="under a launcher its total holds", least=1),
    row("--pipeline-splits", "texts", [], ours="`--splits`", about="first layer of each further stage"),
    row("--device-iteration --device-iterations", "int", 1, ours="`--updates-per-call`", about="updates before the host is back in control", least=1),
    row("--enable-pipeline-recompute --enable-recompute", "flag", False, ours="`--recompute stage`", about="needs --pipeline-splits"),
    row("--recompute-mode", default="none", choices=("none", "auto", "manual"), ours="`--recompute block`", about="none; pipelined models always recompute by stage"),
    row("--recompute-checkpoints", "texts", [], ours="`--recompute block`", about="layers whose outputs are kept"),
    row("--available-memory-proportion", "floats", [], nothing=PLACEMENT, about="fractions; 1 value or one per stage"),
)
MODEL = (
    row("--normlayer --norm-type", default="batch", choices=("batch", "group", "none"), ours="`--norm`", about="batch"),
    row("--groupnorm-group-num --norm-num-groups", "int", 32, ours="`--norm-groups`", about="32", least=1),
    row("--norm-eps", "float", to="norm_epsilon", about="1e-5"),
    row("--batchnorm-momentum", "float", to="norm_momentum", about="0.1"),
    row("--enable-fast-groupnorm", "flag", False, nothing=PLACEMENT),
    row("--disable-stable-batchnorm", "flag", False, ours="`--no-stable-norm`", about="the later program's norms are stable otherwise"),
    row("--efficientnet-expand-ratio", "int", to="expand_ratio", about="6"),
    row("--efficientnet-group-dim", "int", to="group_dim", about="1"),
    row("--input-image-padding", "flag", False, ours="`--in-channels 4`", about="padded to 4 channels"),
    row("--random-weights", "flag", False, nothing="weights are random unless --weights is given", scripts=BENCHMARK),
)
TRAINING = (
    row("--epoch", "int", 10, ours="`--epochs`", about="10", least=1),
    row("--lr", "float", 0.01, to="learning_rate", about="absolute; 0.01"),
    row("--lr-schedule", default="no", choices=("no", "step", "cosine", "exponential"), ours="`--lr-schedule`", about="no"),
    row("--lr-decay", "float", 0.5, ours="`--lr-decay`", about="0.5"),
    row("--lr-epoch-decay", "ints", [], ours="`--lr-drops`", about="epochs after which the rate drops"),
    row("--lr-scheduler-freq", "float", ours="`--lr-every`, `--lr-decay-every`", about="clock ticks per epoch; 0 is every update", least=0),
    row("--warmup-epoch", "int", 0, ours="`--warmup`", about="0", least=0),
    row("--optimizer", default="sgd", choices=("sgd", "adam", "sgd_combined", "adamw", "rmsprop", "rmsprop_tf"), ours="`--optimizer`", about="sgd"),
    row("--momentum", "float", 0.0, ours="`--momentum`", about="0", least=0),
    row("--optimizer-eps", "float", ours="`--optimizer-epsilon`", about="1e-8"),
    row("--rmsprop-decay", "float", 0.99, ours="`--rmsprop-decay`", about="0.99"),
    row("--weight-decay", "float", ours="`--l2-regularization` (adamw: `--weight-decay`), `--decay-exclude 1d`", about="none in the early program; 1e-4 with --config"),
    row("--label-smoothing", "float", 0.0, to="label_smoothing", about="0"),
    row("--loss-scaling", "float", 1.0, ours="`--loss-scale`", about="1"),
    row("--initial-loss-scaling", "float", ours="`--loss-scale A..B`", about="doubles from here to --loss-scaling"),
    row("--auto-loss-scaling", "flag", False, ours="`--loss-scale histogram`", about="adapted to the gradients"),
    row("--half-res-training", "flag", False, ours="`--progressive-image-size`", about="train at 160 (224) or 252 (380) pixels"),
    row("--fine-tune-epoch", "int", 0, ours="`--epochs` of a second run", about="after --half-res-training: at full size, from the averaged weights", least=0),
    row("--fine-tune-lr", "float", 0.25, ours="`--learning-rate` of the second run", about="0.25; sgd, cosine over --epoch epochs", least=0),
    row("--fine-tune-micro-batch-size", "int", 1, ours="`--micro-batch-size` of the second run", about="1", least=1),
    row("--fine-tune-gradient-accumulation", "int", 1, ours="`--accumulation` of the second run", about="1", least=1),
    row("--fine-tune-first-trainable-layer", default="", ours="`--train-only` of the second run, `--frozen-norms`", about="layers before it are frozen"),
    row("--mixup-alpha", "float", 0.0, to="mixup_alpha", about="0"),
    row("--cutmix-lambda-low", "float", 0.0, ours="`--cutmix-lambda`", about="0 and 0, or 1 and 1, are off"),
    row("--cutmix-lambda-high", "float", 0.0, ours="`--cutmix-lambda-high`", about="0"),
    row("--cutmix-disable-prob", "float", 0.0, to="cutmix_skip_probability", about="0"),
    row("--use-bbox-info", "flag", False, ours="`--crop-overlap 0.1`", about="a training crop holds a tenth of an object, where imagenet_2012_bounding_boxes.csv is beside train"),
)
NUMERICS = (
    row("--precision", default="half", choices=("full", "half", "16.16", "16.32", "32.32"), ours="`--precision`", about="half (16.16); full is 32.32"),
    row("--half-partial", "flag", False, ours="`--half-partials`", about="half-precision partial sums"),
    row("--enable-stochastic-rounding", "flag", False, ours="`--stochastic-rounding weights`", about="off"),
    row("--enable-fp-exceptions", "flag", False, to="fp_exceptions", about="stop at the first value that is not finite"),
    row("--eight-bit-io", "flag", False, ours="`--eight-bit-io`", about="8-bit images to the device"),
    row("--normalization-location", default="host", choices=("host", "ipu", "none"), ours="`--normalize-on`, `--normalization none`", about="host"),
)
EVENTS = (
    row("--no-validation", "flag", False, ours="`--no-validation`", about="validates after training otherwise"),
    row("--validation-mode", default="after", choices=("none", "during", "after"), ours="`--validation`, `--validation-mode`", about="after"),
    row("--validation-frequency", "int", 4, ours="`--epochs-per-validation`", about="with during; 4", least=1),
    row("--checkpoint-path", ours="`--run-dir`; restore.py, validate.py: the checkpoint", about="folder of the checkpoints; none without it"),
    row("--checkpoint-output-dir", ours="`--run-dir`", about="folder of the checkpoints; none without it"),
    row("--checkpoint-input-dir", ours="`--checkpoint-path`", about="checkpoints to validate"),
    row("--checkpoint-save-freq", "int", 1, ours="`--checkpoints-per-epoch` 1/value", about="1", least=1),
    row("--checkpoint-input-path", ours="the checkpoint of `conveyor restore`, `validate`, `average`", about="required", scripts=("restore", "validate", "weight_avg")),
    row("--checkpoint-output-path", ours="`--output` of `conveyor average`", about="required", scripts=("weight_avg",)),
    row("--weight-avg-strategy", default="none", choices=("mean", "exponential", "none"), ours="`--average-last`, `--average-decay`", about="none"),
    row("--weight-avg-exp-decay", "float", 0.99, ours="`--average-decay`", about="0.99"),
    row("--weight-avg-N", "int", -1, ours="`--average-last`", about="-1: all"),
    row("--logs-per-epoch", "int", 1, ours="`--logs-per-epoch`", about="1", least=1),
    row("--disable-metrics", "flag", False, to="disable_metrics", about="peak throughput"),
    row("--wandb", "flag", False, to="wandb", about="Weights & Biases"),
    row("--wandb-weight-histogram", "flag", False, to="weight_histograms", about="histograms of the weights"),
)
DEVICE = (
    row("--dataloader-worker", "int", to="loader_threads", about="decoding threads; the cores"),
    row("--dataloader-rebatch-size", "int", nothing="batches are read in one piece"),
    row("--exchange-memory-target", choices=("cycles", "balanced", "memory"), nothing=PLACEMENT),
    row("--profile", "flag", False, ours="`--profile layers`", about="profile of the run"),
    row("--model-cache-path", nothing="there is nothing to compile"),
    row("--num-io-tiles", "int", 0, nothing=PLACEMENT),
    row("--compile-only", "flag", False, ours="`--dry-run`", about="nothing is compiled here: the plan is printed"),
    row("--offline-target-ipu-version", "int", 2, nothing="there is nothing to compile"),
    row("--offload-optimizer", "flag", False, nothing=PLACEMENT),
    row("--enable-optimizer-rts", "flag", False, nothing=PLACEMENT),
    row("--disable-async-loading", "flag", False, nothing="`conveyor data` measures the input pipeline", scripts=HOST),
    row("--loss-velocity-scaling-ratio", "float", nothing="momentum is kept in the type of the weights"),
)
EARLY_HAS_NOT = """
--auto-loss-scaling --batchnorm-momentum --checkpoint-input-dir --checkpoint-input-path --checkpoint-output-dir
--checkpoint-output-path --checkpoint-save-freq --compile-only --config --config-path --cutmix-disable-prob
--cutmix-lambda-high --cutmix-lambda-low --dataloader-rebatch-size --dataloader-worker --device-iterations
--disable-async-loading --disable-stable-batchnorm --efficientnet-expand-ratio --efficientnet-group-dim --eight-bit-io
--enable-fast-groupnorm --enable-fp-exceptions --enable-optimizer-rts --enable-recompute --exchange-memory-target
--fine-tune-epoch --fine-tune-first-trainable-layer --fine-tune-gradient-accumulation --fine-tune-lr
--fine-tune-micro-batch-size --half-res-training --initial-loss-scaling --input-image-padding --label-smoothing
--logs-per-epoch --loss-velocity-scaling-ratio --lr-scheduler-freq --micro-batch-size --mixup-alpha --model-cache-path
--norm-eps --norm-num-groups --norm-type --normalization-location --num-io-tiles --offline-target-ipu-version
--offload-optimizer --optimizer-eps --profile --random-weights --recompute-checkpoints --recompute-mode --rmsprop-decay
--seed --use-bbox-info --validation-frequency --validation-mode --wandb --wandb-weight-histogram --weight-avg-N
--weight-avg-exp-decay --weight-avg-strategy --weight-decay
"""
LATER_HAS_NOT = """
--batch-size --checkpoint-path --config-path --device-iteration --disable-metrics --enable-pipeline-recompute
--enable-recompute --groupnorm-group-num --loss-velocity-scaling-ratio --no-validation --normlayer
"""
TABLE = Table({
    "Model and data": CHOICE,
    "Batch and pipeline": BATCH,
    "Model options": MODEL,
    "Training": TRAINING,
    "Number formats and images": NUMERICS,
    "Validation, checkpoints, logs": EVENTS,
    "Device": DEVICE,
}, (EARLY_HAS_NOT, LATER_HAS_NOT))
LATER = frozenset(["--config", "--micro-batch-size", "--norm-type", "--norm-num-groups", "--validation-mode", "--checkpoint-output-dir", "--device-iterations", "--recompute-mode", "--eight-bit-io", "--normalization-location"])
"""Spellings that only the later program has: their presence chooses its defaults."""
# fmt: on
