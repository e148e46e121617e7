"""PyTorch's second phase: what it is made of, and that it runs."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from tests.dialects.command_lines import COMPAT, plan_of

from conveyor import models
from conveyor.dialects.scripts import translate
from conveyor.errors import UserError
from conveyor.options.units import Duration

WORDS = (
    "--data generated --iterations 2 --micro-batch-size 2 --gradient-accumulation 2 --epoch 2 --half-res-training "
    "--checkpoint-output-dir run --weight-avg-strategy mean --weight-avg-N 2 --precision 32.32 --optimizer adamw "
    "--mixup-alpha 0.2 --warmup-epoch 1 --fine-tune-lr 0.1 --fine-tune-micro-batch-size 1 "
    "--fine-tune-gradient-accumulation 4 --fine-tune-first-trainable-layer layer4/1/bn2 "
)


def phases(words):
    run = translate("pytorch", "train", words.split(), environment={})
    return run, run.then


def test_the_second_phase_is_the_original_s():
    first, second = phases(f"{WORDS} --fine-tune-epoch 1")
    assert first.options.data.progressive_image_size == ("0:160",)
    found = second.flat()
    told = {
        "progressive_image_size": (), "train_crop": "centre", "flip": "none", "mixup_alpha": 0.0, "optimizer": "sgd",
        "learning_rate": 0.1, "lr_schedule": "cosine", "lr_horizon": Duration(2, "ep"), "epochs": 1.0,
        "micro_batch_size": 1, "accumulation": 4, "weights": "run/checkpoints/average-last-2", "run_dir": "run/fine-tune",
        "train_only": ("^layer4.1.bn2.", "^fc."), "frozen_norms": True, "average_last": (), "weight_decay": 0.0,
        "l2_regularization": 1e-4,
    }  # fmt: skip
    assert {name: found[name] for name in told} == told
    assert str(found["warmup"]).startswith("0")
    commands = first.text().splitlines()
    assert [command.split()[:2] for command in commands] == [["conveyor", "train"]] * 2


def test_averages_and_layers_have_other_names_too():
    _, second = phases(f"{WORDS} --fine-tune-epoch 1 --weight-avg-strategy exponential")
    assert second.model.weights == "run/checkpoints/average-exponential-0.99"
    _, second = phases(f"{WORDS} --fine-tune-epoch 1 --weight-avg-strategy none")
    assert second.model.weights == "run", "the newest checkpoint"
    words = f"{WORDS} --fine-tune-epoch 1 --model efficientnet-b0 --fine-tune-first-trainable-layer _blocks/15"
    trained = phases(words)[1].optimizer.train_only
    names = [name for name, _ in models.build("efficientnet_b0").named_parameters()]
    covered = [any(name.startswith(one[1:]) for one in trained) for name in names]
    assert covered == sorted(covered)
    assert names[covered.index(True)].startswith("blocks.6.0.")


def test_without_half_resolution_there_is_no_second_phase():
    run, second = phases("--fine-tune-epoch 2 --fine-tune-lr 0.5")
    assert second is None
    assert [note for note in run.notes if "fine-tune" in note] == [
        "--fine-tune-epoch has no effect without --half-res-training",
        "--fine-tune-lr has no effect without --half-res-training",
    ]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--half-res-training --fine-tune-epoch 1", "--fine-tune-epoch needs --checkpoint-output-dir"),
        (f"{WORDS} --fine-tune-epoch 1 --fine-tune-first-trainable-layer layer9", "no parameter begins so"),
        (f"{WORDS} --fine-tune-epoch -1", "must be at least 0"),
        (f"{WORDS} --fine-tune-micro-batch-size 0", "--fine-tune-micro-batch-size is 0"),
    ],
)
def test_mistakes(words, part):
    with pytest.raises(UserError, match=part):
        phases(words)


def test_the_plan_shows_both(capsys):
    plan = plan_of(f"python3 train.py {WORDS} --fine-tune-epoch 1", "pytorch", capsys)
    assert (plan["updates_total"], plan["then"]["updates_total"], plan["then"]["micro_batch"]) == (4, 2, 1)


@pytest.mark.conformance
@pytest.mark.parametrize("layout", ["1x1", "2x1"])
def test_it_runs(layout, tmp_path):
    words = f"{WORDS} --fine-tune-epoch 1 --max-validation-images 2 --no-tensorboard --layout {layout}"
    command = [sys.executable, COMPAT / "pytorch/train.py", *words.split()]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=200, check=True)
    before = load_file(tmp_path / "run/checkpoints/average-last-2/model.safetensors")
    after = load_file(tmp_path / "run/fine-tune/checkpoints/2/model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name.rpartition(".")[0] for name in changed} == {"layer4.1.bn2", "fc"}
    assert (tmp_path / "run/fine-tune/report.html").exists()
    assert (tmp_path / "run/report.html").exists()
