"""Options of ours on a dialect's command line: they mean what they mean in `conveyor`, or they are refused."""

import pytest
from tests.dialects.command_lines import plan_of, run_line
from tests.dialects.test_meanings import flat, pt, tf1, tf2

from conveyor.errors import UserError

CIFAR = "python train.py --dataset cifar-10 --data-dir cifar "


@pytest.mark.parametrize(
    ("command", "folder"), [(CIFAR, "tensorflow1"), ("python3 train.py --micro-batch-size 32", "tensorflow2")]
)
def test_a_rate_of_ours_is_the_rate(command, folder, capsys):
    assert plan_of(f"{command} --learning-rate 0.1", folder, capsys)["peak_lr"] == 0.1
    scaled = plan_of(f"{command} --learning-rate 0.1 --lr-reference-batch 1", folder, capsys)
    assert scaled["peak_lr"] == pytest.approx(3.2)


def test_a_rate_of_ours_also_sets_the_share_that_an_absolute_end_is():
    words = "--lr-schedule polynomial_decay_lr --abs-end-learning-rate 0.01"
    assert tf1(f"{words} --learning-rate 0.1")["lr_end"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("--accumulation 8", "--gradient-accumulation-count 8"),
        ("--global-batch-size 256", "--gradient-accumulation-count 8"),
    ],
)
def test_periods_follow_a_batch_of_ours(ours, theirs, capsys):
    one, other = (plan_of(CIFAR + words, "tensorflow1", capsys) for words in (ours, theirs))
    keys = ("global_batch", "updates_per_log", "updates_per_checkpoint", "updates_per_call", "calls", "updates_total")
    assert {key: one[key] for key in keys} == {key: other[key] for key in keys}


def test_a_batch_of_ours_counts_in_the_rate_of_popart():
    found = flat("popart", "resnet_main", "--data-dir . --micro-batch-size 8 --replicas 2")
    assert found["learning_rate"] == 16 / 64


def test_what_an_option_of_ours_excludes_gives_way():
    found = tf2("--global-batch-size 32 --accumulation 4")
    assert (found["accumulation"], found["global_batch_size"]) == (4, None)
    assert tf1("--norm-group-channels 8")["norm_groups"] is None
    assert pt("--data generated --synthetic-data")["generated_data"] is False


def test_lengths_of_ours_are_lengths_of_the_checks(capsys):
    with pytest.raises(UserError, match=r"log 2\.0 epochs a time for 5 epochs"):
        tf2("--num-epochs 6 --logs-per-epoch 1/2 --epochs 5")
    assert tf2("--num-epochs 5 --logs-per-epoch 1/2 --epochs 6")["epochs"] == 6
    averaged = pt("--checkpoint-output-dir x --weight-avg-strategy mean --epochs 3")
    assert averaged["average_last"] == (3,)


@pytest.mark.parametrize(
    ("folder", "command", "part"),
    [
        ("tensorflow1", CIFAR + "--data cifar10", "--data: it is --dataset in this program"),
        ("tensorflow1", CIFAR + "--optimizer adamw", "--optimizer: it is --optimiser in this program"),
        ("tensorflow1", CIFAR + "--repeat 2", "no option --repeat in train.py: it belongs to validation.py"),
        ("tensorflow2", "python3 train.py --data cifar10", "--data: it is --dataset in this program"),
        ("tensorflow2", "python3 train.py --repeat 2", "--repeat has no effect in training"),
        ("pytorch", "python3 train.py --repeat 2", "--repeat has no effect in training"),
        ("popart", "python resnet_main.py --data-dir . --model resnet50", "--model: it is --size in this program"),
    ],
)
def test_the_dialect_has_its_own_word(folder, command, part, capsys):
    assert run_line(command, folder) == 2
    assert part in capsys.readouterr().err
