"""The options of the TensorFlow 2 programs (train.py, send_request.py, export_for_serving.py)."""

from conveyor.dialects.table import Table, row

# fmt: off
PLACEMENT = "it steers memory and code placement on the original hardware"
SIZES = (8, 20, 32, 44, 56)
MODELS = ("resnet18", "resnet34", "resnet50", *(f"cifar_resnet{size}" for size in SIZES), "toy_model", "toy_model_bn")
SERVING = ("send_request",)
EXPORT = ("export_for_serving", "send_request")
DATA_TOOLS = ("dataset_benchmark", "verify_dataset")

GENERAL = (
    row("--config", ours="`--config`", about="named configuration of configs.yml"),
    row("--config-path", ours="a file for `--config`", about="default: configs.yml beside the script"),
    row("--on-demand", "switch", True, nothing="devices are always attached when they are needed"),
    row("--compile-only", "flag", False, ours="`--dry-run`", about="nothing is compiled here: the plan is printed"),
    row("--seed", "int", to="seed", about="seed of everything"),
    row("--shuffle", "switch", True, ours="`--shuffle` full or none", about="True"),
    row("--deterministic", "switch", False, ours="`--shuffle none`", about="runs are always reproducible here"),
    row("--dataset", "lower", "cifar10", choices=("imagenet", "cifar10", "cifar100", "mnist"), ours="`--data`", about="cifar10"),
    row("--dataset-path", default=".", ours="`--data-dir`", about="."),
    row("--model-name", default="toy_model", choices=MODELS, ours="`--model`", about="toy_model"),
    row("--training", "switch", True, ours="`conveyor validate` when False", about="True"),
    row("--synthetic-data", choices=("host", "ipu", "cpu"), ours="`--generated-data` (host, cpu), `--synthetic-data` (ipu)", about="no data set needed"),
)
BATCH = (
    row("--micro-batch-size", "int", 1, to="micro_batch_size", about="1", least=1),
    row("--gradient-accumulation-count", "int", ours="`--accumulation`", about="not with --global-batch-size", least=1),
    row("--global-batch-size", "int", ours="`--global-batch-size`", about="rounded to a multiple of the micro-batch over replicas", least=1),
    row("--num-replicas", "int", 1, ours="`--replicas`", about="under a launcher its total holds", least=1),
    row("--num-epochs", "int", 1, ours="`--epochs`", about="1", least=1),
    row("--weight-updates-per-epoch", "int", -1, ours="`--updates-per-epoch`", about="-1: images // global batch"),
    row("--pipeline-splits", "texts", [], nargs="*", ours="`--splits`", about="first layer of each further stage"),
    row("--device-mapping", "ints", nargs="*", ours="`--device-mapping`", about="device of each stage"),
    row("--pipeline-schedule", default="Grouped", choices=("Grouped", "Interleaved", "Sequential"), ours="`--pipeline-schedule` gpipe, 1f1b, sequential", about="Grouped"),
    row("--recomputation", "switch", False, ours="`--recompute stage`", about="needs --pipeline-splits"),
    row("--available-memory-proportion", "floats", [], nargs="*", nothing=PLACEMENT, about="percent; 1 value or 2 per stage"),
    row("--dbn-replica-group-size", "int", 1, ours="`--bn-span`", about="1", least=1),
)
OPTIMIZER = (
    row("--optimizer", "lower", "sgd", choices=("sgd", "lars", "rmsprop"), ours="`--optimizer`", about="sgd"),
    row("--optimizer-params", "yaml", {"momentum": 0}, ours="`--momentum`, `--optimizer-epsilon`, `--lars-eta`, ...", about="{momentum: 0}"),
    row("--loss-scaling", "float", 0.0, ours="`--loss-scale`", about="0 is off", least=0),
    row("--auto-loss-scaling", "switch", False, ours="`--loss-scale histogram`", about="only sgd without momentum and a constant rate"),
    row("--weight-decay", "float", 0.0, to="weight_decay", about="decoupled"),
    row("--l2-regularization", "float", 0.0, to="l2_regularization", about="in the gradient"),
    row("--label-smoothing", "float", to="label_smoothing", about="none"),
    row("--lr-schedule", "lower", "const", choices=("const", "cosine", "stepped", "polynomial"), ours="`--lr-schedule`", about="const"),
    row("--lr-schedule-params", "yaml", {"initial_learning_rate": 0.0001}, ours="`--learning-rate` per sample (`--lr-reference-batch 1`), `--lr-horizon`, `--lr-end`, `--lr-power`, `--lr-drops`, `--lr-values`", about="{initial_learning_rate: 0.0001}"),
    row("--lr-warmup-params", "yaml", ours="`--warmup`, `--warmup-mode`, `--warmup-form from-first`", about="{warmup_mode: shift or mask, warmup_epochs: N}"),
    row("--lr-staircase", "switch", False, ours="`--lr-every 1ep`", about="False"),
    row("--norm-layer", "yaml", {"name": "custom_batch_norm", "momentum": 0.97}, ours="`--norm`, `--norm-momentum` = 1 - momentum, `--norm-groups`, `--norm-group-channels`", about="{name: custom_batch_norm, momentum: 0.97}"),
    row("--stable-norm", "switch", False, to="stable_norm", about="False"),
)
NUMERICS = (
    row("--precision", default="16.16", choices=("16.16", "16.32", "32.32"), ours="`--precision`", about="16.16"),
    row("--half-partials", "switch", False, ours="`--half-partials`", about="False"),
    row("--stochastic-rounding", "upper", "ON", choices=("ON", "OFF", "RI"), ours="`--stochastic-rounding` weights or off", about="ON"),
    row("--fp-exceptions", "switch", False, to="fp_exceptions", about="False"),
    row("--nanoo", "switch", False, ours="`--saturate` when False", about="False"),
    row("--eight-bit-transfer", "switch", False, ours="`--eight-bit-io`", about="needs --accelerator-side-preprocess"),
    row("--accelerator-side-preprocess", "switch", False, ours="`--normalize-on device`", about="False"),
    row("--fused-preprocessing", "switch", False, ours="`--in-channels 4`", about="needs --accelerator-side-preprocess"),
    row("--pipeline-num-parallel", "int", to="loader_threads", about="decoding threads; the original's 48 unless given: the cores here"),
    row("--prefetch-depth", "int", to="prefetch", about="micro-batches prepared ahead", least=1),
)
EVENTS = (
    row("--logs-per-epoch", "frequency", 1, ours="`--logs-per-epoch`", about="a number or a/b", least=0),
    row("--ckpts-per-epoch", "frequency", 1, ours="`--checkpoints-per-epoch`", about="a number or a/b", least=0),
    row("--first-ckpt-epoch", "float", 0.0, ours="`--first-checkpoint-epoch`", about="0", least=0),
    row("--checkpoint-input-dir", ours="`--checkpoint-path`", about="checkpoints to validate; default: those of the run"),
    row("--checkpoint-output-dir", ours="`--run-dir`", about="default: a new folder for each run"),
    row("--ckpt-all-instances", "switch", False, nothing="one checkpoint serves every worker"),
    row("--clean-dir", "switch", True, nothing="checkpoints are kept"),
    row("--validation", "switch", True, ours="`--validation`", about="True: all checkpoints of the run, after training"),
    row("--validation-micro-batch-size", "int", to="validation_batch_size", about="as in training", least=1),
    row("--validation-num-replicas", "int", to="validation_replicas", about="replicas x devices per replica", least=1),
    row("--pipeline-validation-model", "switch", False, to="pipelined_validation", about="False"),
    row("--wandb", "switch", False, to="wandb", about="Weights & Biases"),
    row("--wandb-run-name", to="wandb_name", about="name of the run"),
    row("--wandb-tags", "texts", to="wandb_tags", about="tags"),
    row("--mlperf-logging", "switch", False, nothing="metrics.csv and report.html hold the same figures"),
    row("--sweep", "switch", False, nothing="parameter sweeps are started by their own tools"),
    row("--target-accuracy", "float", 0.759, nothing="it is the yardstick of --sweep"),
)
DEVICE = (
    row("--accelerator-side-reduction", "switch", False, nothing="metrics are always reduced over the workers"),
    row("--optimizer-state-offloading", "switch", True, nothing=PLACEMENT),
    row("--internal-exchange-optimization-target", choices=("cycles", "memory", "balanced"), nothing=PLACEMENT),
    row("--max-cross-replica-buffer-size", "int", 0, ours="`--bucket-size`", about="bytes"),
    row("--max-reduce-many-buffer-size", "int", 0, nothing="gradients are reduced in buckets of --bucket-size"),
    row("--conv-dithering", "switch", False, nothing=PLACEMENT),
    row("--gather-conv-output", "switch", False, nothing=PLACEMENT),
    row("--min-remote-tensor-size", "int", 128, nothing=PLACEMENT),
    row("--scheduling-algorithm", nothing=PLACEMENT),
)
SERVE = (
    row("--host", default="0.0.0.0", ours="`--host` of `conveyor serve`", about="0.0.0.0", scripts=SERVING),
    row("--port", "int", 8500, ours="`--grpc-port` of `conveyor serve`", about="8500", scripts=SERVING),
    row("--batch-size", "int", 1, dest="request_batch_size", ours="`--batch-size` of `conveyor request`", about="images per request", scripts=SERVING, least=1),
    row("--num-threads", "int", 2, ours="`--clients` of `conveyor request`", about="client processes", scripts=SERVING, least=1),
    row("--num-images", "int", 1000, ours="`--num-images` of `conveyor request`", about="images per client", scripts=SERVING, least=1),
    row("--use-async", "flag", False, ours="`--use-async` of `conveyor request`", about="do not wait for each answer", scripts=SERVING),
    row("--verbose", "flag", False, ours="`--verbose` of `conveyor request`", about="print latencies", scripts=SERVING),
    row("--serving-bin-path", nothing="the server is part of this package", scripts=SERVING),
    row("--pytest", "switch", False, nothing="it was for the original's tests", scripts=EXPORT),
    row("--export-dir", ours="folder of `conveyor export`", about="required; new or empty", scripts=EXPORT),
    row("--iterations", "int", 1, nothing="an exported model answers one batch at a time", scripts=EXPORT),
    row("--pipeline-serving-model", "switch", False, nothing="an exported model is one piece", scripts=EXPORT),
    row("--checkpoint-input-path", ours="weights of `conveyor export`", about="random weights without it", scripts=EXPORT),
    row("--use-serving-api", "flag", False, nothing="there is one form of export", scripts=EXPORT),
    row("--split", default="train", choices=("train", "test"), ours="`--split` of `conveyor data`", about="train", scripts=DATA_TOOLS),
)

TABLE = Table({
    "Model and data": GENERAL,
    "Batch and pipeline": BATCH,
    "Optimiser, rate, norms": OPTIMIZER,
    "Number formats and images": NUMERICS,
    "Events, checkpoints, validation": EVENTS,
    "Device": DEVICE,
    "Serving and export": SERVE,
})
# fmt: on
