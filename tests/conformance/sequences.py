"""Two and three commands in a row, as a person types them after the first one worked: validate, restore, average, again.

`<T1> <T2> <PT> <PO>` are the folders of compat/; `{data}` holds 40 training and 8 validation images in CIFAR-10's and
MNIST's own formats. A sequence runs in a folder of its own.
"""

import dataclasses

QUICK = "--no-report --no-tensorboard"
T1 = f"python3 <T1>/train.py --dataset cifar-10 --data-dir {{data}} --model-size 8 --batch-size 8 --epochs 1 --logs-path run {QUICK}"
T1_VALIDATE = (
    "python3 <T1>/validation.py --dataset cifar-10 --data-dir {data} --model-size 8 --batch-size 8 --restore-path run"
)
T1_RESTORE = "python3 <T1>/restore.py --restore-path run"
T1_PIPELINE = "--shards 2 --pipeline --pipeline-splits b2/0/relu --gradient-accumulation-count 4 --batch-size 2"
T2 = f"python3 <T2>/train.py --dataset cifar10 --dataset-path {{data}} --model cifar_resnet8 --micro-batch-size 8 --checkpoint-output-dir run {QUICK}"
T2_VALIDATE = "python3 <T2>/train.py --dataset cifar10 --dataset-path {data} --model cifar_resnet8 --micro-batch-size 8 --training False --checkpoint-input-dir run"
T2_PIPELINE = "--pipeline-splits conv3_block1_layer1_conv --gradient-accumulation-count 4 --micro-batch-size 2"
PT = f"python3 <PT>/train.py --data cifar10 --data-dir {{data}} --model mobilenet-v3-small --image-size 32 --max-train-images 16 --batch-size 4 --epoch 1 --checkpoint-path run {QUICK}"
PT_VALIDATE = "python3 <PT>/validate.py --checkpoint-path run"
PO = f"python3 <PO>/resnet_main.py --dataset CIFAR-10 --data-dir {{data}} --size 8 --batch-size 8 --epochs 1 --run-dir run {QUICK}"
CO = f"conveyor train --data cifar10 --data-dir {{data}} --model cifar_resnet8 --micro-batch-size 8 --epochs 1 --run-dir run {QUICK}"
CO_VALIDATE = "conveyor validate --checkpoint-path run"
EXPORT = "conveyor export run --out exported"
REQUEST = "conveyor request exported --num-images 4 --clients 1"
FOREIGN = "mkdir run && head -c 4096 /dev/zero > run/"


@dataclasses.dataclass(frozen=True)
class Step:
    """One command, and what must be true of its end."""

    command: str
    code: int = 0
    """2: it must be refused in one sentence."""
    expects: str = ""
    """A pattern that the output must hold, besides what every command of its kind must say or leave."""
    random: bool = False
    """Whether random weights were asked for; then the output must say that they are."""


@dataclasses.dataclass(frozen=True)
class Sequence:
    id: str
    steps: tuple[Step, ...]
    cores: tuple[int, ...] = (1,)
    """Cores of each command; the last number holds for those that follow."""


def refused(command: str, expects: str = "error") -> Step:
    return Step(command, code=2, expects=expects)


def row(name: str, *steps: "str | Step", cores: "int | tuple[int, ...]" = 1) -> Sequence:
    made = tuple(step if isinstance(step, Step) else Step(step) for step in steps)
    return Sequence(name, made, cores if isinstance(cores, tuple) else (cores,))


def poprun(program: str, options: str = "--num-instances 2 --num-replicas 2") -> str:
    return f"poprun {options} {program}"


# fmt: off
TENSORFLOW1 = (
    row("t1-validate", T1, T1_VALIDATE),
    row("t1-validate-2", T1, T1_VALIDATE, cores=2),
    row("t1-accumulation-validate", f"{T1} --gradient-accumulation-count 2", T1_VALIDATE),
    row("t1-accumulation-validate-2", f"{T1} --gradient-accumulation-count 2", T1_VALIDATE, cores=2),
    row("t1-accumulation-elsewhere", f"{T1} --gradient-accumulation-count 2", T1_VALIDATE, T1_VALIDATE, cores=(2, 1, 2)),
    row("t1-accumulation-restore-2", f"{T1} --gradient-accumulation-count 2", f"{T1_RESTORE} --epochs 2", T1_VALIDATE, cores=2),
    row("t1-pipeline-validate", f"{T1} {T1_PIPELINE}", T1_VALIDATE),
    row("t1-pipeline-validate-2", f"{T1} {T1_PIPELINE}", T1_VALIDATE, cores=2),
    row("t1-pipeline-recomputed", f"{T1} {T1_PIPELINE} --enable-recomputation --pipeline-schedule Sequential", T1_VALIDATE, cores=2),
    row("t1-pipeline-restore-2", f"{T1} {T1_PIPELINE}", f"{T1_RESTORE} --epochs 2", cores=(2, 1)),
    row("t1-replicas-validate", f"{T1} --replicas 2 --batch-size 4", T1_VALIDATE),
    row("t1-replicas-validate-2", f"{T1} --replicas 2 --batch-size 4", T1_VALIDATE, f"{T1_RESTORE} --epochs 2", cores=2),
    row("t1-replicas-of-pipelines", f"{T1} {T1_PIPELINE} --replicas 2", T1_VALIDATE, cores=2),
    row("t1-restore-longer", T1, f"{T1_RESTORE} --epochs 2", T1_VALIDATE),
    row("t1-restore-finished", T1, T1_RESTORE),
    row("t1-restore-no-validation", T1, f"{T1_RESTORE} --epochs 2 --no-validation"),
    row("t1-restore-another-rule", T1, refused(f"{T1_RESTORE} --epochs 2 --optimiser momentum", "--optimiser")),
    row("t1-restore-another-rate", T1, refused(f"{T1_RESTORE} --abs-learning-rate 0.5", "--abs-learning-rate")),
    row("t1-restore-absent", refused("python3 <T1>/restore.py --restore-path nowhere", "nowhere"), T1, T1_RESTORE),
    row("t1-restore-dry-run-absent", refused("python3 <T1>/restore.py --restore-path nowhere --dry-run", "nowhere"), T1),
    row("t1-average-validate", f"{T1} --epochs 2", "python3 <T1>/weight_avg.py --restore-path run --filename mean --mode mean -N 2", T1_VALIDATE.replace("path run", "path mean")),
    row("t1-average-exponential", f"{T1} --epochs 2", "python3 <T1>/weight_avg.py --restore-path run --filename average --mode exponential --decay 0.9", T1_VALIDATE.replace("path run", "path average")),
    row("t1-average-in-training", f"{T1} --epochs 2 --weight-avg-N 2 --weight-avg-exp 0.9", T1_VALIDATE),
    row("t1-again", T1, T1),
    row("t1-again-validate", T1, T1, T1_VALIDATE, cores=2),
    row("t1-configuration", "python3 <T1>/train.py --config my_config --data-dir {data} --batch-size 8 --epochs 1 --logs-path run", "python3 <T1>/validation.py --config my_config --data-dir {data} --batch-size 8 --restore-path run"),
    row("t1-configuration-no-checkpoint", "python3 <T1>/train.py --config mk2_resnet8_test --data-dir {data} --epochs 1 --batch-size 8 --logs-path run", refused("python3 <T1>/validation.py --config mk2_resnet8_test --data-dir {data} --restore-path run", "checkpoint")),
    row("t1-export-serve", T1, EXPORT, REQUEST),
    row("t1-rmsprop", f"{T1} --optimiser RMSProp", T1_VALIDATE),
    row("t1-many-options", f"{T1} --lr-schedule cosine --label-smoothing 0.1 --enable-half-partials --optimiser momentum --momentum 0.9 --precision 16.32", T1_VALIDATE),
    row("t1-group-norm", f"{T1} --group-norm --groups 4 --stable-norm", f"{T1_VALIDATE} --group-norm --groups 4"),
    row("t1-efficientnet", T1.replace("size 8", "size 4") + " --model efficientnet --model-size cifar", T1_VALIDATE.replace("size 8", "size 4").replace("--model-size 4", "--model efficientnet --model-size cifar")),
    row("t1-devices-of-both", f"{T1} --select-ipus 0 1", T1_VALIDATE),
    row("t1-foreign-folder", FOREIGN + "ckpt-10.index", refused(T1_VALIDATE, "ckpt-10.index")),
    row("t1-start-from-weights", T1, T1.replace("path run", "path second") + " --init-path run", T1_VALIDATE.replace("path run", "path second")),
    row("t1-alias", f"{T1} --epochs 2", T1_VALIDATE.replace("path run", "path run/ckpt-5")),
    row("t1-own-word", refused(f"{T1} --repeat 3", "--repeat"), T1),
    row("t1-poprun", poprun(f"{T1} --no-validation"), poprun(T1_VALIDATE)),
    row("t1-poprun-2", poprun(f"{T1} --no-validation"), poprun(T1_VALIDATE), T1_VALIDATE, cores=2),
    row("t1-poprun-marked", poprun(f"{T1} --no-validation", "--numa-aware 1 --num-instances 2 --num-replicas 4 --ipus-per-replica 1 --mpi-local-args='--tag-output'"), T1_VALIDATE, cores=2),
    row("t1-poprun-hosts", poprun(f"{T1} --no-validation", "--host 127.0.0.1,localhost --num-instances 2 --num-replicas 2 --mpi-global-args='--mca btl_tcp_if_include 127.0.0.0/8'"), T1_VALIDATE, cores=2),
    row("t1-poprun-contradiction", refused(poprun(f"{T1} --no-validation", "--num-instances 2 --num-replicas 2 --ipus-per-replica 4"), "--ipus-per-replica 4"), T1),
)
TENSORFLOW2 = (
    row("t2-validate", T2, T2_VALIDATE),
    row("t2-validate-2", T2, T2_VALIDATE, cores=2),
    row("t2-accumulation-validate", f"{T2} --gradient-accumulation 2", T2_VALIDATE),
    row("t2-accumulation-validate-2", f"{T2} --gradient-accumulation 2", T2_VALIDATE, cores=2),
    row("t2-accumulation-elsewhere", f"{T2} --gradient-accumulation 2", T2_VALIDATE, cores=(2, 1)),
    row("t2-global-batch", f"{T2} --global-batch-size 16", T2_VALIDATE, cores=2),
    row("t2-global-batch-twice", f"{T2} --global-batch-size 16", f"{T2_VALIDATE} --global-batch-size 16"),
    row("t2-pipeline-validate", f"{T2} {T2_PIPELINE}", T2_VALIDATE),
    row("t2-pipeline-validate-2", f"{T2} {T2_PIPELINE} --recomputation True", T2_VALIDATE, cores=2),
    row("t2-pipelined-validation", f"{T2} {T2_PIPELINE} --pipeline-validation-model", f"{T2_VALIDATE} {T2_PIPELINE} --pipeline-validation-model", cores=2),
    row("t2-replicas-validate", f"{T2} --num-replicas 2 --micro-batch-size 4", T2_VALIDATE),
    row("t2-replicas-validate-2", f"{T2} --num-replicas 2 --micro-batch-size 4", f"{T2_VALIDATE} --validation-num-replicas 2", cores=2),
    row("t2-random-asked", Step(T2_VALIDATE.replace(" --checkpoint-input-dir run", ""), random=True), T2),
    row("t2-nothing-to-do", T2, refused(f"{T2_VALIDATE} --validation False", "--validation")),
    row("t2-absent", refused(T2_VALIDATE, "run"), T2, T2_VALIDATE),
    row("t2-foreign-folder", FOREIGN + "epoch_1.0.h5", refused(T2_VALIDATE, "epoch_1.0.h5")),
    row("t2-export-serve", T2, "python3 <T2>/scripts/export_for_serving.py --model cifar_resnet8 --dataset cifar10 --micro-batch-size 4 --export-dir exported --checkpoint-input-path run", REQUEST),
    row("t2-send-request", T2, "python3 <T2>/send_request.py --model cifar_resnet8 --dataset cifar10 --dataset-path {data} --micro-batch-size 4 --num-images 8 --port {port} --checkpoint-input-path run"),
    row("t2-configuration", "python3 <T2>/train.py --config resnet8_test --dataset-path {data} --checkpoint-output-dir run", "python3 <T2>/train.py --config resnet8_test --dataset-path {data} --training False --validation True --checkpoint-input-dir run"),
    row("t2-again", T2, T2),
    row("t2-average", f"{T2} --num-epochs 2", "conveyor average --checkpoint-path run --last 2 --output mean", T2_VALIDATE.replace("dir run", "dir mean")),
    row("t2-restore", T2, "conveyor restore --checkpoint-path run --epochs 2", T2_VALIDATE),
    row("t2-half-logs", Step(f"{T2} --num-epochs 6 --logs-per-epoch 1/2", expects=r"(?s)^(?!(.*batch \d+: ){4}).*batch 10: .*batch 20: .*batch 30: "), T2_VALIDATE),
    row("t2-no-logs", Step(f"{T2} --logs-per-epoch 0", expects="(?i)warn|note: .*log"), T2_VALIDATE),
    row("t2-alias", f"{T2} --num-epochs 2", T2_VALIDATE.replace("dir run", "dir run/epoch_1.0")),
    row("t2-mnist", T2.replace("cifar10", "mnist"), T2_VALIDATE.replace("cifar10", "mnist")),
    row("t2-checkpoints-apart", f"{T2} --num-epochs 2 --ckpts-per-epoch 1/2 --label-smoothing 0", f"{T2_VALIDATE} --validation-micro-batch-size 4"),
    row("t2-poprun", poprun(f"{T2} --validation False"), T2_VALIDATE),
    row("t2-poprun-2", poprun(T2), poprun(T2_VALIDATE), cores=2),
    row("t2-poprun-pipeline", poprun(f"{T2} {T2_PIPELINE} --pipeline-validation-model", "--num-instances 2 --num-replicas 2 --ipus-per-replica 2"), T2_VALIDATE, cores=2),
)
PYTORCH = (
    row("pt-validate", PT, PT_VALIDATE),
    row("pt-validate-2", PT, PT_VALIDATE, cores=2),
    row("pt-accumulation-validate-2", f"{PT} --gradient-accumulation 2", PT_VALIDATE, cores=2),
    row("pt-accumulation-elsewhere", f"{PT} --gradient-accumulation 2", PT_VALIDATE, cores=(2, 1)),
    row("pt-replicas-validate-2", f"{PT} --replicas 2 --batch-size 2", PT_VALIDATE, cores=2),
    row("pt-pipeline-validate", f"{PT} --model resnet18 --image-size 16 --batch-size 2 --max-train-images 8 --gradient-accumulation 2 --pipeline-splits layer3 --lr 0.0001 --precision full", PT_VALIDATE, cores=2),
    row("pt-restore-finished", PT, "python3 <PT>/restore.py --checkpoint-path run"),
    row("pt-restore-longer", PT, "python3 <PT>/restore.py --checkpoint-path run --epoch 2", PT_VALIDATE),
    row("pt-restore-another-rate", PT, refused("python3 <PT>/restore.py --checkpoint-path run --lr 0.5", "--lr")),
    row("pt-average-validate", f"{PT} --epoch 2", "python3 <PT>/weight_avg.py --checkpoint-input-path run --checkpoint-output-path mean --weight-avg-strategy exponential", "python3 <PT>/validate.py --checkpoint-path mean"),
    row("pt-alias", PT, "python3 <PT>/validate.py --checkpoint-path run/mobilenet-v3-small_cifar10_1.pt"),
    row("pt-foreign-folder", FOREIGN + "resnet18_cifar10_1.pt", refused(PT_VALIDATE, "resnet18_cifar10_1.pt")),
    row("pt-absent", refused("python3 <PT>/validate.py --checkpoint-path nowhere", "nowhere"), PT, PT_VALIDATE),
    row("pt-dry-run-absent", refused("python3 <PT>/validate.py --checkpoint-path nowhere --dry-run", "nowhere"), PT),
    row("pt-export-serve", PT, EXPORT, REQUEST),
    row("pt-again", PT, PT),
    row("pt-group-norm", f"{PT} --normlayer group --groupnorm-group-num 4 --optimizer adamw --lr-schedule cosine --lr 0.001 --precision full", PT_VALIDATE),
    row("pt-poprun", poprun(f"{PT} --batch-size 2"), PT_VALIDATE, cores=2),
)
POPART = (
    row("po-validate", PO, CO_VALIDATE),
    row("po-again", PO, PO),
    row("po-accumulation-validate-2", f"{PO} --gradient-accumulation-factor 2", CO_VALIDATE, cores=2),
    row("po-replicas", f"{PO} --replication-factor 2 --num-ipus 2", CO_VALIDATE, cores=2),
    row("po-pipeline", f"{PO} --num-ipus 2 --pipeline --batch-size 2 --gradient-accumulation-factor 4 --recompute", CO_VALIDATE, cores=2),
    row("po-restore", PO, "conveyor restore --checkpoint-path run --epochs 2", CO_VALIDATE),
    row("po-export-serve", f"{PO} --norm-type BATCH", EXPORT, REQUEST),
)
OURS = (
    row("co-validate", CO, CO_VALIDATE),
    row("co-validate-2", CO, CO_VALIDATE, cores=2),
    row("co-accumulation-validate-2", f"{CO} --accumulation 2 --micro-batch-size 4", CO_VALIDATE, cores=2),
    row("co-accumulation-elsewhere", f"{CO} --accumulation 2 --micro-batch-size 4", CO_VALIDATE, "conveyor restore --checkpoint-path run --epochs 2", cores=(2, 1, 2)),
    row("co-layout-validate", f"{CO} --replicas 2 --micro-batch-size 4 --layout 2x1", f"{CO_VALIDATE} --layout 2x1", cores=2),
    row("co-wider-validation", CO, f"{CO_VALIDATE} --layout 2x1", cores=2),
    row("co-pipeline", f"{CO} --splits layer2 --accumulation 2 --micro-batch-size 4 --layout 1x2", CO_VALIDATE, cores=(2, 1)),
    row("co-global-batch", f"{CO} --global-batch-size 16", CO_VALIDATE, cores=2),
    row("co-global-batch-twice", f"{CO} --global-batch-size 16", f"{CO_VALIDATE} --global-batch-size 16"),
    row("co-restore", CO, "conveyor restore --checkpoint-path run --epochs 2", CO_VALIDATE),
    row("co-restore-refused", CO, refused("conveyor restore --checkpoint-path run --micro-batch-size 4", "micro-batch-size")),
    row("co-average", f"{CO} --epochs 2", "conveyor average --checkpoint-path run --last 2 --output mean", "conveyor validate --checkpoint-path mean"),
    row("co-export-onnx", CO, EXPORT, REQUEST),
    row("co-export-openvino", CO, f"{EXPORT} --format openvino", REQUEST),
    row("co-export-torch", CO, f"{EXPORT} --format torch", f"{REQUEST} --engine torch"),
    row("co-serve-the-run", CO, REQUEST.replace("exported", "run"), cores=2),
    row("co-weights", CO, CO.replace("dir run", "dir second") + " --weights run", CO_VALIDATE.replace("run", "second")),
    row("co-own-file", CO, "cp run/checkpoints/*/model.safetensors plain.safetensors", "conveyor validate --checkpoint-path plain.safetensors --data cifar10 --data-dir {data} --model cifar_resnet8"),
    row("co-options-again", CO, "conveyor train --config run/options.yml --run-dir second", CO_VALIDATE.replace("run", "second")),
    row("co-report", CO, "conveyor report run"),
    row("co-launch", f"conveyor launch --instances 2 --replicas 2 -- {CO}", CO_VALIDATE, cores=2),
    row("co-foreign-folder", FOREIGN + "weights.bin", refused(CO_VALIDATE, "weights.bin")),
)
# fmt: on
SEQUENCES = (*TENSORFLOW1, *TENSORFLOW2, *PYTORCH, *POPART, *OURS)
