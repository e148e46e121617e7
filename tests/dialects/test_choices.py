"""Single options as the documents describe them: choices in any case, defaults, what a value of 0 means."""

import pytest
from tests.dialects.command_lines import plan_of
from tests.dialects.test_meanings import IMAGENET, flat, tf1, tf2

from conveyor.dialects.scripts import translate
from conveyor.errors import UserError

LOGS = (
    "python3 train.py --model cifar_resnet8 --num-epochs 6 --precision 16.16 --micro-batch-size 8 --validation False "
    "--half-partials True --gradient-accumulation 8 --logs-per-epoch "
)


def test_choices_take_any_case():
    assert tf1("--optimiser RMSProp")["optimizer"] == "rmsprop"
    assert tf1("--optimiser Momentum --dataset ImageNet")["optimizer"] == "momentum"
    splits = "--model-size 50 --pipeline --shards 2 --pipeline-splits b2/0/relu"
    assert tf1(f"{splits} --pipeline-schedule interleaved")["pipeline_schedule"] == "1f1b"
    assert tf2("--stochastic-rounding off")["stochastic_rounding"] == "off"
    assert flat("pytorch", "train", "--model ResNet50 --precision HALF")["model"] == "resnet50"
    assert flat("popart", "resnet_main", "--data-dir . --norm-type batch")["norm"] == "batch"


@pytest.mark.parametrize(
    ("logs", "alone"),
    [("1/2", "3 calls"), ("1/3", "2 calls"), ("0", "1 call for the whole run"), ("1", None)],
)
def test_checkpoints_return_to_the_host_and_a_note_says_so(logs, alone, capsys):
    plan = plan_of(LOGS + logs, "tensorflow2", capsys)
    assert plan["calls"] == 6, "gcd of both periods, and a checkpoint is written every epoch"
    notes = [note for note in plan["notes"] if "returns to the host" in note]
    assert bool(notes) == (alone is not None)
    assert all(alone in note and f"--ckpts-per-epoch {logs.replace('1/2', '0.5')} does not" in note for note in notes)


@pytest.mark.parametrize(("logs", "calls"), [("1/2", 3), ("1/3", 2), ("0", 1)])
def test_without_more_checkpoints_the_calls_are_those_of_the_text(logs, calls, capsys):
    plan = plan_of(f"{LOGS}{logs} --ckpts-per-epoch {logs}", "tensorflow2", capsys)
    assert plan["calls"] == calls
    assert not [note for note in plan["notes"] if "returns to the host" in note]
    assert ("the whole run is one call" in " ".join(plan["notes"])) == (logs == "0")


def test_no_smoothing_is_no_smoothing():
    assert tf1("--model efficientnet")["label_smoothing"] == 0.1
    assert tf1("--model efficientnet --label-smoothing 0")["label_smoothing"] == 0.0


def test_a_second_device_is_that_of_validation():
    train = translate("tensorflow1", "train", [*IMAGENET, "--select-ipus", "0", "1"], environment={})
    assert (train.options.layout.device_ids, train.options.layout.validation_device_ids) == ((0,), (1,))
    assert not any("select-ipu" in note for note in train.notes)
    quiet = translate("tensorflow1", "train", [*IMAGENET, "--select-ipus", "0", "1", "--no-validation"], environment={})
    assert any("--select-ipu 0 1: 1 has no effect with --no-validation" in note for note in quiet.notes)
    validate = translate(
        "tensorflow1", "validation", [*IMAGENET, "--select-ipus", "0", "1", "--restore-path", "run"], environment={}
    )
    assert validate.options.layout.device_ids == (1,)
    with pytest.raises(UserError, match="--select-ipu 0 1 2: give the device of training"):
        tf1("--select-ipus 0 1 2")


def test_groups_of_cifar_are_said():
    words = ["--dataset", "cifar-10", "--data-dir", "x", "--group-norm"]
    run = translate("tensorflow1", "train", words, environment={})
    assert run.options.model.norm_groups == 16
    assert any(note.startswith("no --groups: 16 groups") for note in run.notes)
    given = translate("tensorflow1", "train", [*words, "--groups", "32"], environment={})
    assert given.options.model.norm_groups == 32
    assert not any("--groups" in note for note in given.notes)
    assert tf1()["norm_groups"] == 32


def test_popart_has_cifar100():
    found = flat("popart", "resnet_main", "--data-dir . --dataset CIFAR-100")
    assert (found["data"], found["image_size"], found["normalization"]) == ("cifar100", 32, "cifar")


def test_parallel_readers_set_the_threads():
    assert tf1()["loader_threads"] is None
    assert tf1("--pipeline-num-parallel 3")["loader_threads"] == 3
    assert tf2()["loader_threads"] is None
    assert tf2("--pipeline-num-parallel 3")["loader_threads"] == 3
    assert flat("pytorch", "train", "--dataloader-worker 3")["loader_threads"] == 3
    assert flat("popart", "resnet_main", "--data-dir .")["loader_threads"] is None
    assert flat("popart", "resnet_main", "--data-dir . --num-workers 3")["loader_threads"] == 3
    assert flat("popart", "resnet_main", "--data-dir . --num-workers 0")["loader_threads"] == 1
    with pytest.raises(UserError, match="--num-workers is -1, but must be at least 0"):
        flat("popart", "resnet_main", "--data-dir . --num-workers -1")
