"""Malformed command lines and files: one clear sentence, exit code 2, never a traceback."""

import pytest
from tests.dialects.command_lines import run_line

TF1 = "python train.py --dataset imagenet --data-dir imagenet-data "
TF1_PIPE = TF1 + "--model-size 50 --pipeline "
CIFAR = "python train.py --dataset cifar-10 --data-dir cifar "
TF2 = "python3 train.py "
PT = "python3 train.py "
PA = "python resnet_main.py --data-dir . "
RUN = "poprun --num-replicas 4 --num-instances 2 python3 train.py --config mk2_resnet50_gn_16ipus "

# folder, command line, a part of the sentence
MISTAKES = [
    ("tensorflow1", "python train.py", "no data: give --data-dir"),
    ("tensorflow1", "python train.py --data-dir somewhere", "does not say which data"),
    ("tensorflow1", "python train.py --generated-data", "--dataset is needed"),
    ("tensorflow1", "python train.py --synthetic-data", "--dataset is needed"),
    ("tensorflow1", TF1 + "--nonsense 3", "no option --nonsense"),
    ("tensorflow1", TF1 + "--batchsize 3", "did you mean '--batch-size'"),
    ("tensorflow1", TF1 + "--batch-size", "expected one argument"),
    ("tensorflow1", TF1 + "--batch-size four", "a whole number"),
    ("tensorflow1", TF1 + "--batch-size 2.5", "a whole number"),
    ("tensorflow1", TF1 + "--batch-size 0", "at least 1"),
    ("tensorflow1", TF1 + "--replicas -2", "at least 1"),
    ("tensorflow1", TF1 + "--gradient-accumulation-count 0", "at least 1"),
    ("tensorflow1", TF1 + "--iterations 0", "at least 1"),
    ("tensorflow1", TF1 + "--logs-per-epoch 0", "at least 1"),
    ("tensorflow1", TF1 + "--epochs 0", "above 0"),
    ("tensorflow1", TF1 + "--epochs many", "a number"),
    ("tensorflow1", TF1 + "--epochs nan", "a number"),
    ("tensorflow1", TF1 + "--model vgg", "--model cannot be 'vgg'"),
    ("tensorflow1", TF1 + "--model efficentnet", "did you mean 'efficientnet'"),
    ("tensorflow1", TF1 + "--model-size 51", "choose one of 10, 14, 18, 26, 34, 50, 101, 152"),
    ("tensorflow1", TF1 + "--model-size fifty", "a whole number"),
    ("tensorflow1", CIFAR + "--model-size 50", "does not exist for resnet on CIFAR"),
    ("tensorflow1", TF1 + "--model efficientnet --model-size B9", "does not exist for efficientnet"),
    ("tensorflow1", TF1 + "--model resnext --model-size 18", "does not exist for resnext"),
    ("tensorflow1", CIFAR + "--image-size 64", "CIFAR images are 32 x 32"),
    ("tensorflow1", TF1 + "--model resnet --expand-ratio 4", "belongs to efficientnet"),
    ("tensorflow1", TF1 + "--model efficientnet --convolution-groups 4", "belongs to resnext"),
    ("tensorflow1", "python train.py --dataset mnist --data-dir mnist", "--dataset cannot be 'mnist'"),
    ("tensorflow1", TF1 + "--precision 16.64", "--precision cannot be"),
    ("tensorflow1", TF1 + "--precision half", "--precision cannot be"),
    ("tensorflow1", TF1 + "--optimiser adam", "--optimiser cannot be 'adam'"),
    ("tensorflow1", TF1 + "--lr-schedule linear", "--lr-schedule cannot be 'linear'"),
    ("tensorflow1", TF1 + "--learning-rate-schedule 0.5;0.7", "separated by commas"),
    ("tensorflow1", TF1 + "--learning-rate-schedule 0.5,1.7", "fractions of the run"),
    ("tensorflow1", TF1 + "--base-learning-rate 99", "between -60 and 60"),
    ("tensorflow1", TF1 + "--abs-learning-rate -0.5", "is negative"),
    ("tensorflow1", TF1 + "--warmup-epochs -1", "must be at least 0"),
    ("tensorflow1", TF1 + "--label-smoothing 1.5", "from 0 to below 1"),
    ("tensorflow1", TF1 + "--cutmix-lambda 2", "from 0 to 1"),
    ("tensorflow1", TF1 + "--cutmix-version 3", "--cutmix-version cannot be"),
    ("tensorflow1", TF1 + "--dataset-percentage-to-use 0", "from 1 to 100"),
    ("tensorflow1", TF1 + "--dataset-percentage-to-use 101", "from 1 to 100"),
    ("tensorflow1", TF1 + "--weight-decay -1", "smallest value"),
    ("tensorflow1", TF1_PIPE + "--shards 4", "needs 3 --pipeline-splits, not 0; there are b1/0/relu"),
    ("tensorflow1", TF1_PIPE + "--shards 4 --pipeline-splits b1/2/relu", "needs 3 --pipeline-splits, not 1"),
    ("tensorflow1", TF1_PIPE + "--shards 2 --pipeline-splits b9/0/relu", "no split point of resnet50"),
    ("tensorflow1", TF1_PIPE + "--shards 3 --pipeline-splits b3/0/relu b1/0/relu", "in the model's order"),
    ("tensorflow1", TF1_PIPE, "with 1 shard needs --pipeline-splits"),
    ("tensorflow1", TF1 + "--pipeline-splits b1/0/relu b2/0/relu", "needs --pipeline"),
    ("tensorflow1", TF1 + "--pipeline-schedule Round", "--pipeline-schedule cannot be"),
    ("tensorflow1", TF1 + "--available-memory-proportion 0.1 0.2", "one value without --pipeline"),
    ("tensorflow1", TF1_PIPE + "--shards 2 --pipeline-splits b2/0/relu --available-memory-proportion 0.1 0.2 0.3", "2 for each of the 2 shards"),
    ("tensorflow1", TF1 + "--available-memory-proportion 15", "fractions above 0"),
    ("tensorflow1", TF1 + "--available-memory-proportion", "expected at least one argument"),
    ("tensorflow1", TF1 + "--ckpts-per-epoch -1", "must be at least 0"),
    ("tensorflow1", TF1 + "--ckpts-per-epoch 2 --epochs-per-ckpt 2", "exclude each other"),
    ("tensorflow1", TF1 + "--ckpts-per-epoch 0 --weight-avg-exp 0.9", "needs checkpoints"),
    ("tensorflow1", TF1 + "--distributed", "--batches-per-step 1"),
    ("tensorflow1", TF1 + "--distributed --batches-per-step 1", "TF_CONFIG"),
    ("tensorflow1", TF1 + "--select-ipu first", "AUTO or device numbers"),
    ("tensorflow1", TF1 + "--gc-profile EVERYTHING", "--gc-profile cannot be"),
    ("tensorflow1", TF1 + "--pipe", "--pipe could mean"),
    ("tensorflow1", TF1 + "--config", "expected one argument"),
    ("tensorflow1", "python train.py --config mk2_resnet50_gn", "there is no configuration 'mk2_resnet50_gn'"),
    ("tensorflow1", "python train.py --config x --config-path nowhere.yml", "there is no file nowhere.yml"),
    ("tensorflow1", "python train.py --config-path configs.yml", "--config-path needs --config"),
    ("tensorflow1", TF1 + "stray", "there is no argument stray"),
    ("tensorflow1", TF1 + "--layout 2by1 --dry-run", "LANESxDEPTH"),
    ("tensorflow1", TF1 + "--layout", "--layout needs a value"),
    ("tensorflow1", "python restore.py", "--restore-path is required"),
    ("tensorflow1", "python restore.py --restore-path nowhere", "nowhere"),
    ("tensorflow1", "python weight_avg.py --restore-path a", "--filename is required: the file of the average"),
    ("tensorflow1", "python weight_avg.py --restore-path a --filename b", "--mode is required"),
    ("tensorflow1", "python weight_avg.py --restore-path a --filename b --mode median", "--mode cannot be"),
    ("tensorflow1", "python weight_avg.py --restore-path a --filename b --mode mean -N 0", "at least 1"),
    ("tensorflow1", "python train.py --filename x --dataset imagenet", "no option --filename"),
    ("tensorflow2", TF2 + "--nonsense", "no option --nonsense"),
    ("tensorflow2", TF2 + "--model-name resnet51", "--model-name cannot be 'resnet51'"),
    ("tensorflow2", TF2 + "--dataset svhn", "--dataset cannot be"),
    ("tensorflow2", TF2 + "--synthetic-data gpu", "--synthetic-data cannot be"),
    ("tensorflow2", TF2 + "--validation perhaps", "true or false"),
    ("tensorflow2", TF2 + "--pipeline-splits conv2d_1 flatten --device-mapping 0 2 1 3", "for 3 stages"),
    ("tensorflow2", TF2 + "--pipeline-splits conv2d_1 flatten --device-mapping 0 0 2", "leaves a gap"),
    ("tensorflow2", TF2 + "--recomputation", "needs a pipelined model"),
    ("tensorflow2", TF2 + "--recomputation True --gradient-accumulation 8", "needs a pipelined model"),
    ("tensorflow2", TF2 + "--logs-per-epoch -1", "must be at least 0"),
    ("tensorflow2", TF2 + "--ckpts-per-epoch -1/2", "must be at least 0"),
    ("tensorflow2", TF2 + "--first-ckpt-epoch -1", "must be at least 0"),
    ("tensorflow2", TF2 + "--logs-per-epoch 0.25 --num-epochs 6", "log 4.0 epochs a time for 6 epochs"),
    ("tensorflow2", TF2 + "--logs-per-epoch 1/2 --num-epochs 5", "log 2.0 epochs a time for 5 epochs"),
    ("tensorflow2", TF2 + "--logs-per-epoch 1/2/3", "a number or a fraction"),
    ("tensorflow2", TF2 + "--logs-per-epoch 1/", "a number or a fraction"),
    ("tensorflow2", TF2 + "--logs-per-epoch often", "a number or a fraction"),
    ("tensorflow2", TF2 + "--logs-per-epoch 1/0", "a number or a fraction"),
    ("tensorflow2", TF2 + "--eight-bit-transfer", "--accelerator-side-preprocess"),
    ("tensorflow2", TF2 + "--fused-preprocessing True", "--accelerator-side-preprocess"),
    ("tensorflow2", TF2 + "--gradient-accumulation-count 2 --global-batch-size 8", "exclude each other"),
    ("tensorflow2", TF2 + "--config resnet8_16ipus_bn --gradient-accumulation-count 2", "exclude each other"),
    ("tensorflow2", TF2 + "--available-memory-proportion 10 20", "one value without --pipeline-splits"),
    ("tensorflow2", TF2 + "--pipeline-splits conv2d_1 --available-memory-proportion 10 20 30", "2 for each of the 2 stages"),
    ("tensorflow2", TF2 + "--available-memory-proportion 120", "percentages"),
    ("tensorflow2", TF2 + "--precision half", "--precision cannot be"),
    ("tensorflow2", TF2 + "--precision 32.16", "--precision cannot be"),
    ("tensorflow2", TF2 + "--optimizer adam", "--optimizer cannot be"),
    ("tensorflow2", TF2 + "--optimizer lars", "needs 'epsilon'"),
    ("tensorflow2", TF2 + "--optimizer rmsprop --optimizer-params '{momentum: 0.9, epsilon: 0.1}'", "needs 'base_decay_exponent'"),
    ("tensorflow2", TF2 + "--optimizer-params momentum", "a mapping"),
    ("tensorflow2", TF2 + "--optimizer-params '{moment: 0.9}'", "takes no 'moment'"),
    ("tensorflow2", TF2 + "--optimizer-params '{momentum: lots}'", "should be a number"),
    ("tensorflow2", TF2 + "--lr-schedule cosine", "needs 'epochs_to_total_decay'"),
    ("tensorflow2", TF2 + "--lr-schedule zigzag", "--lr-schedule cannot be"),
    ("tensorflow2", TF2 + "--lr-schedule stepped --lr-schedule-params '{values: [1, 2], boundaries: [1, 2]}'", "2 values need 1 boundaries"),
    ("tensorflow2", TF2 + "--lr-schedule stepped", "needs 'values'"),
    ("tensorflow2", TF2 + "--lr-warmup-params '{warmup_mode: slow, warmup_epochs: 2}'", "choose shift or mask"),
    ("tensorflow2", TF2 + "--lr-warmup-params '{warmup_mode: mask}'", "needs 'warmup_epochs'"),
    ("tensorflow2", TF2 + "--norm-layer '{name: layer_norm}'", "there is no norm 'layer_norm'"),
    ("tensorflow2", TF2 + "--model-name cifar_resnet8 --norm-layer '{name: group_norm}'", "either num_groups or channels_per_group"),
    ("tensorflow2", TF2 + "--dbn-replica-group-size 2 --num-replicas 3", "must divide the 3 replicas"),
    ("tensorflow2", TF2 + "--dbn-replica-group-size 2 --num-replicas 2 --pipeline-splits conv2d_1", "one device per replica"),
    ("tensorflow2", TF2 + "--weight-updates-per-epoch 0", "at least 1"),
    ("tensorflow2", TF2 + "--auto-loss-scaling --optimizer-params '{momentum: 0.9}'", "the momentum must be 0"),
    ("tensorflow2", TF2 + "--auto-loss-scaling --lr-warmup-params '{warmup_mode: mask, warmup_epochs: 1}'", "no warm-up"),
    ("tensorflow2", TF2 + "--ckpt-all-instances --ckpts-per-epoch 0", "--ckpt-all-instances without checkpoints"),
    ("tensorflow2", TF2 + "--micro-batch-size 60000 --dry-run", "an update needs 60000 images"),
    ("tensorflow2", "python3 send_request.py --port 0", "from 1 to 65535"),
    ("tensorflow2", "python3 send_request.py --num-threads 0", "at least 1"),
    ("tensorflow2", "python3 scripts/export_for_serving.py", "add --export-dir DIR"),
    ("tensorflow2", "python3 scripts/export_for_serving.py --export-dir scripts", "is not empty"),
    ("tensorflow2", "python3 scripts/export_for_serving.py --export-dir train.py", "is not a folder: give another one with --export-dir"),
    ("tensorflow2", "python3 scripts/export_for_serving.py --export-dir new --checkpoint-input-path nowhere", "does not exist"),
    ("tensorflow2", "poprun --num-instances 2 --num-replicas 4 --ipus-per-replica 2 python3 train.py --pipeline-splits conv2d_1", "--pipeline-validation-model"),
    ("pytorch", PT + "--model alexnet", "--model cannot be 'alexnet'"),
    ("pytorch", PT + "--data svhn", "--data cannot be"),
    ("pytorch", PT + "--batch-size 0", "at least 1"),
    ("pytorch", PT + "--precision double", "--precision cannot be"),
    ("pytorch", PT + "--normlayer layer", "--normlayer cannot be"),
    ("pytorch", PT + "--available-memory-proportion 0.1", "needs --pipeline-splits"),
    ("pytorch", PT + "--pipeline-splits layer2 --available-memory-proportion 0.1 0.2 0.3", "one for each of the 2 stages"),
    ("pytorch", PT + "--pipeline-splits layer2 layer2", "names a layer twice"),
    ("pytorch", PT + "--pipeline-splits", "expected at least one argument"),
    ("pytorch", PT + "--optimizer lamb", "--optimizer cannot be"),
    ("pytorch", PT + "--lr fast", "a number"),
    ("pytorch", PT + "--lr -0.1", "smallest value"),
    ("pytorch", PT + "--momentum -0.1", "must be at least 0"),
    ("pytorch", PT + "--warmup-epoch -1", "must be at least 0"),
    ("pytorch", PT + "--loss-scaling 0", "above 0"),
    ("pytorch", PT + "--mixup-alpha 0.2", "at least 2, not 1"),
    ("pytorch", PT + "--cutmix-lambda-low 0.9 --cutmix-lambda-high 0.1 --batch-size 8", "rise from 0 to 1"),
    ("pytorch", PT + "--config resnet51", "there is no configuration 'resnet51'"),
    ("pytorch", "python3 restore.py", "--checkpoint-path is required"),
    ("pytorch", "python3 validate.py --checkpoint-path nowhere", "nowhere"),
    ("popart", "python resnet_main.py", "--data-dir is required"),
    ("popart", PA + "--size 21", "--size cannot be '21'"),
    ("popart", PA + "--dataset MNIST", "--dataset cannot be"),
    ("popart", PA + "--batch-size 10 --replication-factor 4 --num-ipus 4", "multiple of the replication factor"),
    ("popart", PA + "--num-ipus 3 --replication-factor 2", "multiple of the replication factor"),
    ("popart", PA + "--learning-rate-decay 1,0.1", "one factor more than points"),
    ("popart", PA + "--learning-rate-schedule half", "separated by commas"),
    ("popart", PA + "--base-learning-rate -6.5", "a whole number"),
    ("popart", PA + "--valid-per-epoch 0", "above 0"),
    ("popart", PA + "--precision 64", "--precision cannot be"),
    ("tensorflow1", "poprun", "what is to be run"),
    ("tensorflow1", "poprun --num-replicas 4", "what is to be run"),
    ("tensorflow1", "poprun --num-replicas four python3 train.py", "a whole number"),
    ("tensorflow1", "poprun --num-replicas 0 python3 train.py", "at least 1"),
    ("tensorflow1", "poprun --num-replicas 2 --num-instances 4 python3 train.py", "at least one replica"),
    ("tensorflow1", "poprun --num-replicas 5 --num-instances 2 python3 train.py", "divided evenly"),
    ("tensorflow1", "poprun --host a,b --num-replicas 3 --num-instances 3 python3 train.py", "spread evenly over 2 hosts"),
    ("tensorflow1", "poprun --replicas 4 python3 train.py", "there is no option --replicas"),
    ("tensorflow1", "poprun --num 4 python3 train.py", "--num could mean"),
    ("tensorflow1", "poprun --host", "--host needs a value"),
    ("tensorflow1", "poprun --num-replicas 2 python3 nowhere.py", "does not exist"),
    ("tensorflow1", RUN + "--distributed --batches-per-step 1", "--distributed and poprun exclude"),
    ("tensorflow1", RUN + "--no-such-thing", "no option --no-such-thing"),
    ("tensorflow1", "mpirun -np 2", "what is to be run"),
    ("tensorflow1", "mpirun -np 2 ls --dry-run", "not for ls"),
    ("tensorflow1", "gc-profile", "what is to be profiled"),
    ("tensorflow1", "gc-profile -x -- python train.py", "gc-profile -d DIR"),
    ("tensorflow1", "gc-info --fast", "write gc-info -l"),
    ("tensorflow1", "python3 train.py --dataset cifar-10 --generated-data --batch-size inf", "a whole number"),
    ("tensorflow1", "python3 train.py --dataset cifar-10 --generated-data --seed 1e400", "a whole number"),
    ("tensorflow1", "python3 train.py --dataset cifar-10 --generated-data --warmup-epochs inf", "a number"),
    ("tensorflow1", "python3 train.py --dataset cifar-10 --generated-data --learning-rate-schedule 1e999999999", "separated by commas"),
    ("tensorflow2", "python3 train.py --logs-per-epoch 1e999999999", "a number or a fraction"),
    ("tensorflow2", "python3 train.py --lr-warmup-params '{warmup_mode: mask, warmup_epochs: .inf}'", "should be a number"),
    ("tensorflow2", "python3 train.py --norm-layer '{name: custom_batch_norm, momentum: .nan}' --model-name resnet50", "should be a number"),
    ("tensorflow2", "python3 -m examples_utils benchmark", "--spec"),
    ("tensorflow2", "python3 -m examples_utils measure --spec x", "measure"),
    ("tensorflow2", "python3 -m examples_utils benchmark --spec nowhere.yml", "nowhere.yml"),
]  # fmt: skip


def _started(options):
    raise AssertionError("the command line was taken for a good one")


def one_sentence(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return len(lines) == 1 and ": error: " in lines[0] and "Traceback" not in text


@pytest.mark.parametrize(("folder", "command", "part"), MISTAKES, ids=lambda value: None)
def test_a_malformed_command_line_is_one_sentence(folder, command, part, capsys, monkeypatch):
    monkeypatch.delenv("DATA_DIR", raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr("conveyor.commands.train.execute", _started)
    assert run_line(command, folder) == 2
    error = capsys.readouterr().err
    assert one_sentence(error), error
    assert part in error


def test_a_mistake_in_one_of_several_tasks_of_srun_counts_more_than_the_loss_that_its_peers_report(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert run_line("python3 train.py --batch-size many", "pytorch") == 98


def test_there_are_more_than_a_hundred():
    assert len(MISTAKES) >= 100


# folder, text of the file, a part of the sentence
FILES = [
    ("tensorflow1", "x: [1, 2", "not valid YAML"),
    ("tensorflow1", "- a\n- b\n", "should hold options"),
    ("tensorflow1", "y: {}\n", "there is no configuration 'x'"),
    ("tensorflow1", "x: 3\n", "should hold 'option: value' lines"),
    ("tensorflow1", "x:\n  dataset: imagenet\n  batch_size: many\n", "a whole number"),
    ("tensorflow1", "x:\n  dataset: imagenet\n  batch_size: [1, 2]\n", "takes one value"),
    ("tensorflow1", "x:\n  dataset: imagenet\n  precision: 16.64\n", "--precision cannot be"),
    ("tensorflow1", "x:\n  dataset: imagenet\n  pipeline: maybe\n", "true or false"),
    ("tensorflow1", "x:\n  dataset: moon\n", "--dataset cannot be"),
    ("tensorflow1", "x:\n  dataset: imagenet\n  momentum: true\n", "a number"),
    ("tensorflow1", "x:\n  model: lenet\n  dataset: imagenet\n", "--model cannot be 'lenet'"),
    ("tensorflow1", "x:\n  dataset: imagenet\n  model_size: 51\n", "does not exist"),
    ("tensorflow1", "x:\n  batch_size: 1\n  batch_size: 2\n", "stands twice"),
    ("tensorflow1", "x: &x\n  <<: *y\n", "not valid YAML"),
    ("tensorflow2", "x:\n  num-epochs: 1.5\n", "a whole number"),
    ("tensorflow2", "x:\n  optimizer-params: 3\n", "a mapping"),
    ("tensorflow2", "x:\n  logs-per-epoch: a/b\n", "a number or a fraction"),
    ("tensorflow2", "x:\n  l2-regularization: little\n", "a number"),
    ("tensorflow2", "x:\n  precision: 32.16\n", "--precision cannot be"),
    ("tensorflow2", "x:\n  pipeline-splits: [a]\n  device-mapping: [0, 2]\n", "leaves a gap"),
    ("pytorch", "x:\n  micro_batch_size: 0\n", "at least 1"),
    ("pytorch", "x:\n  lr: {}\n", "a number"),
]


@pytest.mark.parametrize(("folder", "text", "part"), FILES)
def test_a_malformed_file_is_one_sentence(folder, text, part, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("conveyor.commands.train.execute", _started)
    file = tmp_path / "own.yml"
    file.write_text(text)
    assert (
        run_line(f"python3 train.py --config x --config-path {file}", folder, variables={"DATA_DIR": "imagenet-data"})
        == 2
    )
    error = capsys.readouterr().err
    assert one_sentence(error), error
    assert part in error
    assert "own.yml" in error or part in (
        "a number",
        "at least 1",
        "does not exist",
        "there is no model",
        "not supported",
        "leaves a gap",
    )
