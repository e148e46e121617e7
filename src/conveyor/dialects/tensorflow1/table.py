"""The options of the TensorFlow 1 programs (train.py, validation.py, restore.py, weight_avg.py), in all their spellings."""

from conveyor.dialects.table import Table, row

# fmt: off
RESNETS = ("resnet", "resnext")
EFFICIENTNET = ("efficientnet",)
PLACEMENT = "it steers memory and code placement on the original hardware"
HERE = "the choice is made by the layout here"

CHOICE = (
    row("--model", "lower", "resnet", choices=(*RESNETS, "efficientnet", "squeezenet"), ours="`--model` (with --model-size)", about="model family"),
    row("--config", ours="`--config`", about="named configuration of configs.yml"),
    row("--config-path", ours="a file for `--config`", about="file of configurations; default configs.yml beside the script"),
    row("--restore-path", ours="`conveyor restore`, `conveyor validate`", about="run folder to continue or to validate"),
    row("--dataset", "lower", choices=("imagenet", "cifar-10", "cifar-100"), ours="`--data`", about="inferred from --data-dir when absent"),
    row("--data-dir", ours="`--data-dir`", about="default: the variable DATA_DIR"),
    row("--generated-data", "flag", False, to="generated_data", about="random images made on the host"),
    row("--synthetic-data", "flag", False, to="synthetic_data", about="random images made on the device"),
    row("--image-size", "int", to="image_size", about="224, or by EfficientNet size; CIFAR is always 32", least=1),
    row("--dataset-percentage-to-use", "int", ours="`--data-percentage`", about="1 to 100"),
    row("--dataset-benchmark", "flag", False, ours="`conveyor data bench` with the run's data options", about="the input pipeline alone is measured; nothing is trained"),
)
MODEL = (
    row("--model-size", ours="`--model`", about="18, 50, ... or B0 .. B7 (4 means B4), CIFAR", models=(*RESNETS, *EFFICIENTNET)),
    row("--batch-norm", "flag", False, ours="`--norm batch`", about="default for CIFAR", models=(*RESNETS, *EFFICIENTNET)),
    row("--group-norm", "flag", False, ours="`--norm group`", about="default for ImageNet", models=(*RESNETS, *EFFICIENTNET)),
    row("--groups", "int", ours="`--norm-groups`", about="32 ImageNet, 16 CIFAR, 4 EfficientNet", models=(*RESNETS, *EFFICIENTNET)),
    row("--BN-decay", "float", ours="`--norm-momentum` = 1 - value", about="0.97", models=(*RESNETS, *EFFICIENTNET)),
    row("--convolution-groups", "int", to="cardinality", about="32", models=("resnext",)),
    row("--group-dim", "int", to="group_dim", about="ResNeXt 4, EfficientNet 1", models=("resnext", "efficientnet")),
    row("--widenet", "flag", False, ours="`--wide`", about="wide CIFAR ResNeXt", models=("resnext",)),
    row("--dropout-rate", "float", to="dropout", about="by size", models=EFFICIENTNET),
    row("--block-survival-prob", "float", to="survival", about="0.8", models=EFFICIENTNET),
    row("--no-se", "flag", False, ours="`--no-squeeze-excite`", about="without squeeze-and-excitation", models=EFFICIENTNET),
    row("--depth-divisor", "int", to="depth_divisor", about="8", models=EFFICIENTNET),
    row("--top-width", "int", to="top_width", about="1280", models=EFFICIENTNET),
    row("--use-relu", "flag", False, ours="`--activation relu`", about="instead of swish", models=EFFICIENTNET),
    row("--expand-ratio", "int", to="expand_ratio", about="6", models=EFFICIENTNET),
    row("--norm-epsilon", "float", ours="`--norm-epsilon`", about="0.001", models=EFFICIENTNET),
    row("--proxy-norm", "flag", False, ours="`--norm proxy`", about="proxy-normalised activations", models=EFFICIENTNET),
    row("--proxy-epsilon", "float", to="proxy_epsilon", about="0.03", models=EFFICIENTNET),
    row("--no-proxy-recompute", "off", True, dest="proxy_recompute", nothing="--recompute decides here", models=EFFICIENTNET),
    row("--width-coefficient", "float", to="width_coefficient", about="by size", models=EFFICIENTNET),
    row("--depth-coefficient", "float", to="depth_coefficient", about="by size", models=EFFICIENTNET),
    row("--use-bypass", "flag", False, ours="`--bypass`", about="identity around fire 3, 5, 7 and 9", models=("squeezenet",)),
    row("--stable-norm", "flag", False, ours="`--stable-norm`", about="forced for ResNeXt and EfficientNet on ImageNet"),
    row("--BN-span", "int", 1, to="bn_span", about="batch-norm statistics over this many replicas", least=1),
    row("--force-unstable-norm", "flag", False, ours="`--no-stable-norm`", about="one-pass statistics in spite of the model"),
)
BATCH = (
    row("--batch-size --micro-batch-size", "int", ours="`--micro-batch-size`", about="ResNet 4/32, ResNeXt 1/8, EfficientNet 4/8 (ImageNet/CIFAR)", least=1),
    row("--gradient-accumulation-count", "int", 1, ours="`--accumulation`", about="micro-batches per update and replica", least=1),
    row("--replicas", "int", 1, ours="`--replicas`", about="under a launcher its total count holds", least=1),
    row("--shards", "int", 1, ours="`--stages`", about="devices of one replica", least=1),
    row("--pipeline", "flag", False, ours="`--stages`, `--splits`", about="without it, several shards split automatically"),
    row("--pipeline-splits --pipeline-split", "texts", ours="`--splits`", about="first layer of each further stage"),
    row("--pipeline-schedule", default="Grouped", choices=("Grouped", "Interleaved", "Sequential"), ours="`--pipeline-schedule` gpipe, 1f1b, sequential", about="Grouped"),
    row("--enable-recomputation --xla-recompute --enable-recompute", "flag", False, ours="`--recompute` stage (pipelined) or block", about="recompute activations"),
    row("--sharding-exclude-filter", "texts", ours="`--split-exclude`", about="automatic splits never here"),
    row("--sharding-include-filter", "texts", ours="`--split-include`", about="automatic splits only here"),
    row("--available-memory-proportion", "floats", nothing=PLACEMENT, about="fractions; 1 value or 2 per shard"),
    row("--distributed", "flag", False, ours="replicas x workers of TF_CONFIG", about="several hosts by TF_CONFIG"),
    row("--syncs-per-epoch", "int", nothing="replicas hold the same weights by construction"),
    row("--epochs-per-sync", "float", nothing="replicas hold the same weights by construction"),
    row("--max-cross-replica-buffer-size", "int", ours="`--bucket-size`", about="bytes"),
)
TRAINING = (
    row("--epochs --epoch", "float", ours="`--epochs`", about="ResNet(X) 100/160, EfficientNet 350/300 (ImageNet/CIFAR)"),
    row("--iterations", "int", ours="`--updates`", about="wins over --epochs", least=1),
    row("--base-learning-rate --base-learning-rate-exponent", "float", ours="`--learning-rate` 2^value, `--lr-reference-batch` 1", about="rate = 2^value x global batch"),
    row("--abs-learning-rate", "float", ours="`--learning-rate`", about="absolute rate"),
    row("--lr-schedule", "lower", "stepped", choices=("stepped", "cosine", "exponential", "polynomial_decay_lr"), ours="`--lr-schedule`", about="evaluated at every update"),
    row("--learning-rate-decay", "float", 0.1, ours="`--lr-decay`", about="factor of every drop"),
    row("--learning-rate-schedule", ours="`--lr-drops`", about="fractions of the run; 0.3,0.6,0.8,0.9 (ImageNet) or 0.5,0.75 (CIFAR)"),
    row("--warmup-epochs", "float", 5.0, ours="`--warmup`", about="linear from 0; 0 is off", least=0),
    row("--lr-decay-rate", "float", 0.97, ours="`--lr-decay`", about="exponential schedule"),
    row("--lr-drops", "int", 146, ours="`--lr-decay-every` = epochs / value", about="exponential schedule", least=1),
    row("--poly-lr-decay-power", "float", 2.0, ours="`--lr-power`", about="polynomial schedule"),
    row("--poly-lr-end-ratio", "float", 1e-5, ours="`--lr-end`", about="final rate as a share of the peak"),
    row("--abs-end-learning-rate", "float", ours="`--lr-end` = value / peak", about="final rate, absolute"),
    row("--optimiser", default="SGD", choices=("SGD", "RMSprop", "momentum", "LARS"), ours="`--optimizer`", about="update rule"),
    row("--momentum", "float", 0.9, ours="`--momentum`", about="momentum, RMSprop, LARS"),
    row("--rmsprop-decay", "float", ours="`--rmsprop-decay`", about="decay of the squared gradient"),
    row("--rmsprop-base-decay-exp", "float", ours="`--rmsprop-decay-per-sample` 2^value", about="-14 for EfficientNet with RMSprop"),
    row("--rmsprop-epsilon", "float", 0.001, ours="`--optimizer-epsilon`", about="inside the root"),
    row("--lars-epsilon", "float", 0.0, ours="`--optimizer-epsilon`", about="LARS"),
    row("--lars-skip-list", "texts", ["beta", "gamma", "bias"], ours="`--lars-exclude`", about="beta and gamma are norms here"),
    row("--lars-weight-decay", "float", ours="`--weight-decay` of LARS", about="inside the trust ratio"),
    row("--lars-eeta", "float", 0.001, ours="`--lars-eta`", about="trust coefficient"),
    row("--weight-decay", "float", ours="`--l2-regularization`, `--decay-exclude norm` for ImageNet", about="L2 in the gradient; 1e-4/1e-6, EfficientNet 1e-5/1e-6"),
    row("--loss-scaling", "float", 128.0, ours="`--loss-scale`", about="static"),
    row("--label-smoothing", "float", ours="`--label-smoothing`, `--smoothing-form others`", about="0; EfficientNet on ImageNet 0.1"),
    row("--variable-filter", "texts", ours="`--train-only`", about="train only the layers whose names contain one of these: Top block7, b4 fc1"),
    row("--init-path", to="weights", about="start from these weights"),
    row("--weight-avg-N", "ints", ours="`--average-last`", about="average the checkpoints of the last N epochs"),
    row("--weight-avg-exp", "floats", ours="`--average-decay`", about="exponential average of all checkpoints"),
    row("--seed", "int", to="seed", about="seed of everything"),
)
NUMERICS = (
    row("--precision", default="16.16", choices=("16.16", "16.32", "32.32"), to="precision", about="compute.master"),
    row("--enable-half-partials", "flag", False, ours="`--half-partials`", about="half-precision partial sums"),
    row("--no-stochastic-rounding", "flag", False, ours="`--stochastic-rounding off`", about="weights are rounded stochastically otherwise"),
    row("--fp-exceptions", "flag", False, to="fp_exceptions", about="stop at the first value that is not finite"),
    row("--saturate-on-overflow", "flag", False, to="saturate", about="largest half value instead of infinity"),
    row("--force-weight-to-fp32", "texts", nothing="norm statistics are kept in float32 anyway"),
)
INPUT = (
    row("--normalise-input", "flag", False, ours="`--normalization imagenet`", about="without it only channel means are subtracted"),
    row("--hostside-norm", "flag", None, ours="`--normalize-on host`", about="default: on the device", dest="hostside_norm"),
    row("--no-hostside-norm", "off", None, dest="hostside_norm", ours="`--normalize-on device`", about="older inverse of --hostside-norm"),
    row("--eight-bit-io", "flag", False, ours="`--eight-bit-io`", about="8-bit images to the device"),
    row("--fused-preprocessing", "flag", False, ours="`--in-channels 4`", about="ImageNet only: padded to 4 channels"),
    row("--standard-imagenet", "flag", False, nothing="the whole set is always shuffled", about="standard reader"),
    row("--train-with-valid-preprocessing", "flag", False, ours="`--train-crop centre`", about="validation-style training crops"),
    row("--mixup-alpha", "float", 0.0, ours="`--mixup-alpha`", about="0 is off"),
    row("--cutmix-lambda", "float", 1.0, ours="`--cutmix-lambda`", about="1 is off"),
    row("--cutmix-version", "int", 1, choices=(1, 2), ours="`--cutmix-draw` exponential (1) or fixed (2)", about="1"),
    row("--hostside-image-mixing", "flag", False, ours="`--mix-on host`", about="mixup and cutmix on the host"),
    row("--no-dataset-cache", "flag", False, ours="`--data-cache off`", about="no raw records in memory"),
    row("--pipeline-num-parallel", "int", to="loader_threads", about="decoding threads; the original's 48 unless given: the cores here"),
    row("--prefetch-depth", "int", to="prefetch", about="batches prepared ahead", least=1),
)
EVENTS = (
    row("--ckpts-per-epoch", "int", 1, ours="`--checkpoints-per-epoch`", about="0 is none", least=0),
    row("--epochs-per-ckpt", "int", 0, ours="`--checkpoints-per-epoch` 1/value", about="instead of --ckpts-per-epoch", least=0),
    row("--ckpt-epochs-offset", "int", 0, ours="`--first-checkpoint-epoch`", about="first checkpoint"),
    row("--ckpt-all-instances", "any", False, nothing="one checkpoint serves every worker"),
    row("--max-ckpts-to-keep", "int", to="checkpoints_to_keep", about="all"),
    row("--no-validation", "off", True, dest="validation", ours="`--no-validation`", about="validation runs after training"),
    row("--valid-batch-size", "int", to="validation_batch_size", about="the training batch", least=1),
    row("--log-dir", default="./logs/", ours="`--run-dir` (folder above it)", about="./logs/"),
    row("--logs-path", ours="`--run-dir`", about="the run folder itself"),
    row("--name-suffix", ours="`--run-dir` (end of its name)", about="part of the run's name"),
    row("--logs-per-epoch", "int", 16, ours="`--logs-per-epoch` or `--updates-per-log`", about="log every (updates per epoch) // value updates", least=1),
    row("--log-freq", "int", 500, ours="`--updates-per-log`", about="with --iterations", least=1),
    row("--no-logs", "flag", False, nothing="the run folder is always written"),
    row("--log-all-instances", "any", nothing="one log serves every worker"),
    row("--mlperf-logging", "flag", False, nothing="metrics.csv and report.html hold the same figures"),
    row("--wandb", "flag", False, to="wandb", about="Weights & Biases"),
    row("--wandb-project", default="tf-cnn", ours="`--wandb-project`", about="tf-cnn"),
    row("--latency", "flag", False, to="latency", about="latencies in validation"),
)
DEVICE = (
    row("--batches-per-step --device-iterations", "int", 1000, ours="`--updates-per-call`", about="at most; 1 with --distributed", least=1),
    row("--select-ipu --select-ipus", "texts", ours="`--device-ids`, `--validation-device-ids`", about="AUTO, or the device to train on and, if wanted, that of validation"),
    row("--gc-profile", nargs="?", dest="profile", choices=("DEVICE_PROFILE", "IPU_PROFILE", "TILE_PROFILE", "NO_PROFILE"), ours="`--profile` light, layers, full, off", about="under gc-profile"),
    row("--compile-only", "flag", False, ours="`--dry-run`", about="nothing is compiled here: the plan is printed"),
    row("--on-demand", "flag", False, nothing="devices are always attached when they are needed"),
    row("--disable-variable-offloading", "flag", False, nothing=PLACEMENT),
    row("--offload-fp32-weight-copy", "flag", False, nothing=PLACEMENT),
    row("--min-remote-tensor-size", "int", 128, nothing=PLACEMENT),
    row("--max-reduce-many-buffer-size", "int", nothing="gradients are reduced in buckets of --bucket-size"),
    row("--gather-conv-output", "flag", False, nothing=PLACEMENT),
    row("--enable-conv-dithering", "flag", False, nothing=PLACEMENT),
    row("--internal-exchange-optimisation-target", choices=("balanced", "cycles", "memory"), nothing=PLACEMENT),
    row("--num-io-tiles", "int", 0, nothing=PLACEMENT),
    row("--scheduling-algorithm", nothing=PLACEMENT),
    row("--only-use-slic-vmac-16", "flag", False, nothing=PLACEMENT),
    row("--gcl-max-broadcast-size", "int", nothing=PLACEMENT),
    row("--executable-cache-path", nothing="there is nothing to compile"),
    row("--tmp-execs", "flag", False, nothing="there is nothing to compile"),
    row("--identical-replica-seeding", "flag", False, nothing="replicas always round alike"),
    row("--gradient-mean-reduce-re", "texts", nothing="gradients are always averaged over replicas"),
    row("--num-inference-thread", "int", nothing=HERE),
)
OTHER_SCRIPTS = (
    row("--repeat", "int", 1, to="repeat", about="validate this many times", scripts=("validation",)),
    row("--inference", "any", False, nothing="accuracy costs nothing here", scripts=("validation",)),
    row("--filename", ours="`--output` of `conveyor average`", about="averaged weights", scripts=("weight_avg",)),
    row("-N", "int", ours="`--last` of `conveyor average`", about="last N checkpoints", scripts=("weight_avg",), least=1),
    row("--mode", choices=("mean", "exponential"), ours="`--mode` of `conveyor average`", about="required", scripts=("weight_avg",)),
    row("--decay", "float", 0.99, ours="`--decay` of `conveyor average`", about="exponential", scripts=("weight_avg",)),
    row("--discard-last", "int", 0, ours="`--discard-last` of `conveyor average`", about="leave out the newest", scripts=("weight_avg",)),
    row("--base-folder", nothing="--wandb logs while training", scripts=("upload_run",)),
    row("--name", nothing="--wandb logs while training", scripts=("upload_run",)),
    row("--project", nothing="--wandb logs while training", scripts=("upload_run",)),
    row("--help", "flag", False, ours="help, with the options of the chosen --model", about="prints the options"),
)

SDK20_HAS_NOT = """
--BN-span --base-folder --base-learning-rate-exponent --ckpt-epochs-offset --config-path --cutmix-version
--dataset-percentage-to-use --device-iterations --enable-recomputation --enable-recompute --epoch --epochs-per-ckpt
--epochs-per-sync --executable-cache-path --force-unstable-norm --force-weight-to-fp32 --fused-preprocessing
--gather-conv-output --gcl-max-broadcast-size --gradient-mean-reduce-re --identical-replica-seeding --inference --latency
--logs-path --max-ckpts-to-keep --max-reduce-many-buffer-size --micro-batch-size --min-remote-tensor-size
--mlperf-logging --name --no-hostside-norm --no-proxy-recompute --num-inference-thread --num-io-tiles
--offload-fp32-weight-copy --on-demand --only-use-slic-vmac-16 --pipeline-split --prefetch-depth --project
--proxy-epsilon --proxy-norm --saturate-on-overflow --scheduling-algorithm --select-ipus --syncs-per-epoch --tmp-execs
--valid-batch-size --wandb --wandb-project
"""
SDK21_HAS_NOT = """
--base-learning-rate-exponent --device-iterations --enable-recompute --epoch --executable-cache-path
--force-unstable-norm --force-weight-to-fp32 --gcl-max-broadcast-size --gradient-mean-reduce-re
--identical-replica-seeding --max-ckpts-to-keep --max-reduce-many-buffer-size --micro-batch-size --no-hostside-norm
--num-inference-thread --only-use-slic-vmac-16 --pipeline-split --select-ipus --sharding-exclude-filter
--sharding-include-filter --tmp-execs --use-bypass --valid-batch-size --xla-recompute
"""
TABLE = Table({
    "Model and data": CHOICE,
    "Model options": MODEL,
    "Batch and pipeline": BATCH,
    "Training": TRAINING,
    "Number formats": NUMERICS,
    "Images": INPUT,
    "Validation, checkpoints, logs": EVENTS,
    "Device": DEVICE,
    "Other scripts": OTHER_SCRIPTS,
}, (SDK20_HAS_NOT, SDK21_HAS_NOT))
# fmt: on
