"""Command lines that the older programs' own tests run: they mean here what those tests expect."""

import pytest
from tests.dialects.command_lines import plan_of, run_line

TF1 = "python train.py --generated-data --iterations 10"
TF2 = "python3 train.py"
PLANS = {
    "efficientnet-b1-in-four-stages": (
        "tensorflow1",
        (
            f"{TF1} --dataset imagenet --model efficientnet --model-size B1 --shards 4 --pipeline --batch-size 4"
            " --pipeline-splits block2a/c block4a block5c --gradient-accumulation-count 128"
        ),
        {"stages": 4, "global_batch": 512, "image_size": 240, "updates_total": 10},
    ),
    "efficientnet-b0-two-replicas-relu": (
        "tensorflow1",
        f"{TF1} --dataset imagenet --model efficientnet --model-size B0 --replicas 2 --use-relu",
        {"model": "efficientnet_b0", "replicas": 2, "image_size": 224},
    ),
    "efficientnet-of-cifar": (
        "tensorflow1",
        "python train.py --generated-data --dataset cifar-10 --model efficientnet --model-size cifar --iterations 100",
        {"model": "efficientnet_cifar", "image_size": 32, "updates_total": 100},
    ),
    "resnext14-in-two-stages": (
        "tensorflow1",
        (
            f"{TF1} --dataset imagenet --model resnext --model-size 14 --shards 2 --pipeline --pipeline-splits b2/0/relu"
            " --batch-size 2 --gradient-accumulation-count 256"
        ),
        {"model": "resnext14", "stages": 2, "global_batch": 512},
    ),
    "many-options-resnet14": (
        "tensorflow1",
        (
            "python train.py --generated-data --dataset cifar-10 --model-size 14 --batch-norm --precision 32.32 --seed 1234"
            " --no-stochastic-rounding --base-learning-rate -4 --batch-size 16 --epochs 10 --warmup-epochs 0"
        ),
        {"model": "cifar_resnet14", "precision": "32.32", "peak_lr": 1.0, "epochs": 10},
    ),
    "many-options-resnext29": (
        "tensorflow1",
        (
            "python train.py --generated-data --dataset cifar-10 --model resnext --model-size 29 --base-learning-rate -6"
            " --batch-size 16 --epochs 10 --warmup-epochs 0"
        ),
        {"model": "cifar_resnext29", "peak_lr": 0.25},
    ),
    "batch-norm-span-and-an-abbreviation": (
        "tensorflow1",
        (
            f"{TF1} --dataset imagenet --model-size 50 --batch-norm --BN-span 2 --replicas 2 --eight-bit --batch-size 2"
            " --pipeline --shards 2 --pipeline-splits b3/0/relu --pipeline-schedule Sequential --enable-recomputation"
            " --gradient-accumulation-count 4"
        ),
        {"stages": 2, "replicas": 2, "global_batch": 16},
    ),
    "16k-configuration-with-one-replica": (
        "tensorflow2",
        f"{TF2} --config resnet50_16ipus_16k_bn_pipeline --num-replicas 1 --synthetic-data cpu",
        {"stages": 4, "replicas": 1, "global_batch": 16384},
    ),
    "global-batch-10-becomes-12": (
        "tensorflow2",
        f"{TF2} --global-batch-size 10 --micro-batch-size 3 --num-replicas 2",
        {"global_batch": 12, "accumulation": 2},
    ),
    "fused-preprocessing": (
        "tensorflow2",
        (
            f"{TF2} --dataset imagenet --dataset-path x --model resnet50 --accelerator-side-preprocess"
            " --fused-preprocessing --eight-bit-transfer"
        ),
        {"model": "resnet50", "image_size": 224},
    ),
    "popart-resnet50-pipelined": (
        "popart",
        "python resnet_main.py --data-dir ./ --size 50 --norm-type GROUP --num-ipus 4 --batch-size 4 --pipeline",
        {"model": "resnet50", "global_batch": 4},
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_command_of_the_original_tests(name, capsys):
    folder, command, expected = PLANS[name]
    plan = plan_of(command, folder, capsys)
    assert {key: plan[key] for key in expected} == expected


@pytest.mark.parametrize("folder", ["tensorflow1", "tensorflow2", "pytorch", "popart"])
def test_help_of_every_program(folder, capsys):
    script = "resnet_main.py" if folder == "popart" else "train.py"
    assert run_line(f"python3 {script} --help", folder) == 0
    assert "batch-size" in capsys.readouterr().out
