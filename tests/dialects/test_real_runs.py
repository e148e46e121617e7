"""A few of the printed command lines, really run in this process on tiny data (`make conformance` runs them all)."""

import csv
import json

import pytest
from tests.data.small import make_cifar10
from tests.dialects.command_lines import run_line

TINY = "--layout 1x1 --no-report --no-tensorboard"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    make_cifar10(folder / "cifar-10-batches-bin", per_file=8)
    return folder


def rows(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def test_training_with_its_own_log_lines(data, tmp_path, capsys):
    words = "python3 train.py --model cifar_resnet8 --num-epochs 2 --precision 16.16 --micro-batch-size 2 --half-partials True"
    words += (
        f" --gradient-accumulation 2 --logs-per-epoch 1 --dataset-path {data} --checkpoint-output-dir {tmp_path}/run"
    )
    assert run_line(f"{words} --max-train-images 8 {TINY}", "tensorflow2") == 0
    said = capsys.readouterr().out
    assert said.startswith("conveyor train --data cifar10")
    assert "training_accuracy" in said
    assert "validation_accuracy" in said
    assert len(rows(tmp_path / "run" / "metrics.csv")) == 2
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) >= 2


def test_train_restore_validate_and_average(data, tmp_path, capsys):
    run = tmp_path / "RN8"
    words = f"python train.py --model-size 8 --dataset cifar-10 --data-dir {data} --batch-size 4 --epochs 2 --logs-path {run}"
    assert run_line(f"{words} --max-train-images 8 --updates 2 {TINY}", "tensorflow1") == 0
    assert f" Saving to {run}" in capsys.readouterr().out
    assert run_line(f"python restore.py --restore-path {run} --updates 4 --no-report", "tensorflow1") == 0
    assert rows(run / "metrics.csv")[-1]["update"] == "4"
    capsys.readouterr()
    assert (
        run_line(
            f"python validation.py --model-size 8 --dataset cifar-10 --data-dir {data} --restore-path {run} {TINY} --run-dir {tmp_path}/v",
            "tensorflow1",
        )
        == 0
    )
    assert "4" in capsys.readouterr().out
    assert (
        run_line(
            f"python weight_avg.py --restore-path {run} --filename {tmp_path}/mean --mode mean -N 2", "tensorflow1"
        )
        == 0
    )
    assert (tmp_path / "mean").exists()


def test_a_launcher_and_a_profile(data, tmp_path, capsys):
    words = f"poprun -v --num-instances 2 --num-replicas 4 python3 train.py --synthetic-data host --updates 1 --run-dir {tmp_path}/run"
    assert run_line(f"{words} --max-validation-images 4 {TINY}", "tensorflow2") == 0
    assert "--replicas 4" in capsys.readouterr().out
    words = f"gc-profile -d {tmp_path}/profile -- python train.py --gc-profile --model-size 8 --dataset cifar-10 --data-dir {data}"
    assert (
        run_line(f"{words} --batch-size 4 --updates 2 --no-validation --logs-path {tmp_path}/p {TINY}", "tensorflow1")
        == 0
    )
    (operators,) = (tmp_path / "profile").rglob("operators.json")
    assert json.loads(operators.read_text()), "the second update was profiled"


def test_the_input_pipeline_alone_is_measured(data, tmp_path, capsys):
    run = tmp_path / "run"
    words = f"python train.py --model-size 8 --dataset cifar-10 --data-dir {data} --batch-size 4 --logs-path {run}"
    assert run_line(f"{words} --dataset-benchmark --hostside-norm", "tensorflow1") == 0
    first, *table = capsys.readouterr().out.splitlines()
    assert first.startswith("conveyor data bench --data cifar10 --data-dir")
    assert any(line.startswith("delivered and prepared") for line in table)
    assert not run.exists(), "nothing was trained"


def test_foreign_checkpoint_paths_are_one_sentence(tmp_path, capsys):
    (tmp_path / "old.pt").write_bytes(b"not a checkpoint")
    assert run_line(f"python3 validate.py --checkpoint-path {tmp_path}/old.pt", "pytorch") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
