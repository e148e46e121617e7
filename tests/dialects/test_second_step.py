"""Two and three commands in a row, on small real files: who has trained validates, goes on, and does it again."""

import csv
import json

import pytest
import torch
import yaml
from tests.data.small import make_cifar10
from tests.dialects.command_lines import run_line

from conveyor.checkpoint import folder as checkpoints
from conveyor.cli import main

SMALL = "--max-train-images 16 --max-validation-images 8"
TINY = f"--layout 1x1 --no-report --no-tensorboard {SMALL}"
TF1 = "--dataset cifar-10 --model-size 8 --batch-size 4"
TF2 = "--dataset cifar10 --model-name cifar_resnet8 --micro-batch-size 4"
PT = "--data cifar10 --model resnet18 --batch-size 4 --image-size 32"
PO = "--size 8 --batch-size 4"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    make_cifar10(folder / "cifar-10-batches-bin", per_file=8)
    return folder


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """One finished run of each program that can go on: two epochs of two updates with accumulation."""
    folder = tmp_path_factory.mktemp("runs")
    tf1 = f"python train.py {TF1} --data-dir {data} --gradient-accumulation-count 2 --epochs 2 --logs-path {folder}/tf1"
    pt = f"python3 train.py {PT} --data-dir {data} --gradient-accumulation 2 --epoch 2 --checkpoint-path {folder}/pt"
    tf2 = f"python3 train.py {TF2} --dataset-path {data} --global-batch-size 8 --num-epochs 2 --checkpoint-output-dir {folder}/tf2"
    for line, dialect in ((tf1, "tensorflow1"), (pt, "pytorch"), (tf2, "tensorflow2")):
        assert run_line(f"{line} {TINY}", dialect) == 0
    return folder


@pytest.fixture
def say(capsys, monkeypatch, tmp_path, caplog):
    """Run a line; (exit code, everything that was said)."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def run(line, dialect=None):
        capsys.readouterr()
        caplog.clear()
        code = main(line.split()[1:]) if dialect is None else run_line(line, dialect)
        told = capsys.readouterr()
        said = told.out + told.err + caplog.text
        assert "Traceback" not in said
        return code, said

    return run


def validated(said):
    """The names in the table of a validation."""
    lines = said.splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.startswith("checkpoint ")]
    rows = []
    for line in lines[head + 1 :]:
        if line.startswith("written to"):
            return rows
        rows.append(line.split()[0])
    raise AssertionError(said)


PIPELINES = {
    "tensorflow1": "--pipeline --shards 2 --pipeline-splits b2/0/relu --gradient-accumulation-count 4",
    "tensorflow2": "--pipeline-splits conv3_block1_layer1_conv --gradient-accumulation-count 4",
}
FIRST = {
    "accumulation": ("tensorflow1", f"train.py {TF1} --data-dir DATA --gradient-accumulation-count 2 --epochs 2 --logs-path RUN",
                     f"validation.py {TF1} --data-dir DATA --gradient-accumulation-count 2 --restore-path RUN", ["0", "2", "4"]),
    "tf1 pipeline": ("tensorflow1", f"train.py {TF1} --data-dir DATA {PIPELINES['tensorflow1']} --epochs 1 --logs-path RUN",
                     f"validation.py {TF1} --data-dir DATA --restore-path RUN", ["0", "1"]),
    "tf1 span": ("tensorflow1", f"train.py {TF1} --data-dir DATA --replicas 2 --BN-span 2 --epochs 1 --logs-path RUN",
                 f"validation.py {TF1} --data-dir DATA --BN-span 2 --restore-path RUN", ["0", "2"]),
    "global batch": ("tensorflow2", f"train.py {TF2} --dataset-path DATA --global-batch-size 8 --num-epochs 2 --checkpoint-output-dir RUN",
                     f"train.py {TF2} --dataset-path DATA --global-batch-size 8 --training False --checkpoint-input-dir RUN", ["2", "4"]),
    "tf2 pipeline": ("tensorflow2", f"train.py {TF2} --dataset-path DATA {PIPELINES['tensorflow2']} --checkpoint-output-dir RUN",
                     f"train.py {TF2} --dataset-path DATA {PIPELINES['tensorflow2']} --recomputation True --training False --checkpoint-input-dir RUN", ["1"]),
    "tf2 periods": ("tensorflow2", f"train.py {TF2} --dataset-path DATA --checkpoint-output-dir RUN",
                    f"train.py {TF2} --dataset-path DATA --logs-per-epoch 1/2 --num-epochs 5 --training False --checkpoint-input-dir RUN", ["4"]),
    "pytorch": ("pytorch", f"train.py {PT} --data-dir DATA --gradient-accumulation 4 --epoch 1 --checkpoint-path RUN",
                "validate.py --checkpoint-path RUN", ["1"]),
    "pytorch pipeline": ("pytorch", f"train.py {PT} --data-dir DATA --gradient-accumulation 4 --pipeline-splits layer2 --epoch 1 --checkpoint-path RUN",
                         "validate.py --checkpoint-path RUN", ["1"]),
    "popart": ("popart", f"resnet_main.py {PO} --data-dir DATA --gradient-accumulation-factor 4 --epochs 1 --run-dir RUN",
               "conveyor validate --checkpoint-path RUN --layout 1x1 --global-batch-size 4096", ["1"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST)
def test_what_was_trained_can_be_validated(name, data, tmp_path, say):
    """Nothing about updates refuses a validation, and nothing about them is taken over from the run."""
    dialect, train, validate, expected = FIRST[name]
    run = tmp_path / "run"
    place = lambda line: line.replace("DATA", str(data)).replace("RUN", str(run))  # noqa: E731
    assert run_line(f"python {place(train)} {TINY}", dialect) == 0
    line = place(validate) + f" --run-dir {tmp_path}/out --max-validation-images 8"
    code, said = say(line) if line.startswith("conveyor") else say(f"python {line}", dialect)
    assert code == 0, said
    assert validated(said) == expected
    assert "random weights" not in said
    with open(run / "validation.csv") as file:
        trained = list(csv.DictReader(file))
    with open(tmp_path / "out" / "validation.csv") as file:
        again = list(csv.DictReader(file))
    accuracy = next(key for key in trained[0] if "acc" in key)
    unit = 100 if dialect == "tensorflow2" else 1
    assert [float(row["accuracy"]) for row in again] == [unit * float(row[accuracy]) for row in trained]


FOREIGN = {
    "pytorch": ("resnet18_cifar10_1.pt", "python3 validate.py --checkpoint-path PATH"),
    "tensorflow1": ("ckpt-10.index", f"python validation.py {TF1} --data-dir DATA --restore-path PATH"),
    "tensorflow2": ("epoch_1.0.h5", f"python3 train.py {TF2} --dataset-path DATA --training False --checkpoint-input-dir PATH"),
}  # fmt: skip


@pytest.mark.parametrize("switch", ["", " --dry-run"])
@pytest.mark.parametrize("dialect", FOREIGN)
def test_files_of_other_programs_are_named(dialect, switch, data, tmp_path, say):
    name, line = FOREIGN[dialect]
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / name).write_bytes(b"\x89HDF")
    line = line.replace("DATA", str(data)).replace("PATH", str(folder)) + switch
    code, said = say(line, dialect)
    assert code == 2
    assert name in said
    assert "plain weights" in said
    code, said = say(line.replace(str(folder), str(tmp_path / "absent")), dialect)
    assert code == 2
    assert "there is nothing at" in said


def test_an_empty_folder_is_no_reason_for_random_weights(data, tmp_path, say):
    (tmp_path / "empty").mkdir()
    line = f"python3 train.py {TF2} --dataset-path {data} --training False"
    code, said = say(f"{line} --checkpoint-input-dir {tmp_path}/empty", "tensorflow2")
    assert code == 2
    assert "is empty" in said
    code, said = say(f"{line} {SMALL} --run-dir {tmp_path}/out", "tensorflow2")
    assert code == 0
    assert said.splitlines()[0] == "random weights are validated: no checkpoint is given"
    assert said.count("random weights") == 1
    assert validated(said) == ["random"]
    code, said = say(f"{line} {SMALL} --no-report --dry-run", "tensorflow2")
    assert code == 0
    assert "note: --no-report: a validation prints" in said
    assert said.splitlines()[0] == "random weights are validated: no checkpoint is given"
    code, said = say(f"python validation.py {TF1} --data-dir {data}", "tensorflow1")
    assert code == 2, "001 has no validation of random weights"
    assert "error: --restore-path is required" in said


IN_VAIN = ["--train-crop", "--flip", "--shuffle", "--mixup", "--norm-momentum", "--init", "--zero-init-gamma", "--stochastic-rounding", "--loss-scale", "--optimizer", "--learning-rate", "--epochs", "--log-style"]  # fmt: skip


@pytest.mark.parametrize("dialect", ["tensorflow1", "tensorflow2", "pytorch"])
def test_the_command_of_a_validation_has_only_what_matters(dialect, runs, data, tmp_path, say):
    run = runs / ALIASES[dialect][0]
    line = FOREIGN[dialect][1].replace("DATA", str(data)).replace("PATH", str(run))
    code, said = say(
        f"{line} --wandb {'True' if dialect == 'tensorflow2' else ''} {SMALL} --run-dir {tmp_path}", dialect
    )
    assert code == 0, said
    command = said.splitlines()[0]
    assert command.startswith("conveyor validate ")
    assert f"--checkpoint-path {run}" in command
    assert not [flag for flag in IN_VAIN if flag in command], command
    assert "--wandb: a validation prints a table and writes validation.csv, they have no effect" in said
    # The same command typed as it is printed gives the same answers.
    again = say(command)
    assert again[0] == 0, again[1]
    assert [row.split()[:5] for row in said.splitlines() if row[:2] in ("2 ", "4 ")] == [
        row.split()[:5] for row in again[1].splitlines() if row[:2] in ("2 ", "4 ")
    ]


def test_plain_weights_of_ones_own_take_the_model_of_the_command_line(runs, data, tmp_path, say):
    torch.save(checkpoints.load(runs / "pt" / "checkpoints" / "4").model, tmp_path / "mine.pt")
    line = (
        f"python3 validate.py --checkpoint-path {tmp_path}/mine.pt --data-dir {data} {SMALL} --run-dir {tmp_path}/out"
    )
    code, said = say(f"{line} {PT}", "pytorch")
    assert code == 0, said
    assert validated(said) == ["mine.pt"]
    mine = next(line for line in said.splitlines() if line.startswith("mine.pt ")).split()
    _, said = say(
        f"python3 validate.py --checkpoint-path {runs}/pt/resnet18_cifar10_2.pt --run-dir {tmp_path}/o", "pytorch"
    )
    stored = next(line for line in said.splitlines() if line.startswith("4 ")).split()
    assert mine[2:5] == stored[2:5], "accuracy and loss of the same weights"
    code, said = say(line, "pytorch")
    assert "learns badly" not in said, "a validation learns nothing"
    code, said = say(f"{line} {PT} --model resnet34", "pytorch")
    assert code == 2
    assert "does not fit the model" in said


ALIASES = {
    "pytorch": ("pt", "resnet18_cifar10_1.pt", "2"),
    "tensorflow1": ("tf1", "ckpt-2", "2"),
    "tensorflow2": ("tf2", "epoch_2.0.h5", "4"),
}


@pytest.mark.parametrize("dialect", ALIASES)
def test_the_names_that_scripts_know_open_the_checkpoint(dialect, runs, data, tmp_path, say):
    run, name, update = ALIASES[dialect]
    line = FOREIGN[dialect][1].replace("DATA", str(data)) + f" {SMALL} --run-dir {tmp_path}"
    for path in (runs / run / name, runs / run / "checkpoints" / name):
        code, said = say(line.replace("PATH", str(path)), dialect)
        assert code == 0, said
        assert validated(said) == [update]
    absent = name.replace("1.", "9.").replace("-2", "-9").replace("2.0", "9.0")
    code, said = say(line.replace("PATH", str(runs / run / absent)), dialect)
    assert code == 2
    assert "2 (epoch 1), 4 (epoch 2)" in said


def options_of(run):
    return yaml.safe_load((run / "options.yml").read_text())


RESTORE = {
    "pytorch": ("pt", "python3 restore.py --checkpoint-path RUN", "--epoch 3 --no-validation --logs-per-epoch 2"),
    "tensorflow1": ("tf1", "python restore.py --restore-path RUN", "--epochs 3 --no-validation --logs-per-epoch 2"),
}  # fmt: skip
REFUSED = {
    "pytorch": ("--optimizer adam", "--batch-size 2", "--seed 5", "--precision 32.32", "--momentum 0.5", "--model resnet34"),
    "tensorflow1": ("--optimiser momentum", "--batch-size 2", "--seed 5", "--precision 32.32", "--weight-decay 0.1", "--batch-norm --model-size 14"),
}  # fmt: skip


@pytest.mark.parametrize("dialect", RESTORE)
def test_what_can_change_on_a_restored_run_acts(dialect, runs, tmp_path, say):
    run, line, changes = RESTORE[dialect]
    branch = "--checkpoint-output-dir" if dialect == "pytorch" else "--logs-path"
    code, said = say(f"{line.replace('RUN', str(runs / run))} {changes} {branch} {tmp_path}/on", dialect)
    assert code == 0, said
    stored, before = options_of(tmp_path / "on"), options_of(runs / run)
    assert (stored["epochs"], stored["learning_rate"], stored["validation"]) == (3.0, before["learning_rate"], False)
    assert (stored["logs_per_epoch"], stored["updates_per_log"]) == (2, None)
    assert json.loads((tmp_path / "on" / "result.json").read_text())["updates"] == 6
    assert {key: stored[key] for key in ("optimizer", "micro_batch_size", "accumulation", "seed")} == {
        key: before[key] for key in ("optimizer", "micro_batch_size", "accumulation", "seed")
    }


@pytest.mark.parametrize(
    ("dialect", "changes"), [(dialect, words) for dialect in REFUSED for words in REFUSED[dialect]]
)
@pytest.mark.parametrize("switch", ["", " --dry-run"])
def test_what_would_change_the_past_is_refused_under_the_name_that_was_typed(dialect, changes, switch, runs, say):
    run, line, _ = RESTORE[dialect]
    code, said = say(f"{line.replace('RUN', str(runs / run))} {changes}{switch}", dialect)
    assert code == 2
    flag = changes.split()[-2]
    assert f"error: {flag} would change what the run" in said


@pytest.mark.parametrize(
    ("dialect", "changes"), [("pytorch", "--lr 0.02"), ("tensorflow1", "--abs-learning-rate 0.02")]
)
def test_another_rate_is_refused_with_the_command_that_takes_it(dialect, changes, runs, say):
    run, line, _ = RESTORE[dialect]
    code, said = say(f"{line.replace('RUN', str(runs / run))} {changes}", dialect)
    assert code == 2
    assert f"error: {changes.split()[0]} stays as the run" in said
    assert f"conveyor restore {runs / run} --learning-rate 0.02 changes it from here on" in said


def test_the_plan_of_a_restored_run_has_the_changes(runs, say):
    code, said = say(f"python restore.py --restore-path {runs}/tf1 --epochs 7 --dry-run --json", "tensorflow1")
    assert code == 0, said
    plan = json.loads(said)
    assert (plan["epochs"], plan["global_batch"], plan["train_images"]) == (7, 8, 16)


def test_training_goes_on_with_the_same_command_and_the_path(runs, data, tmp_path, say):
    """train.py --restore-path: options that repeat what the run has are no change, others are refused."""
    line = f"python train.py {TF1} --data-dir {data} --gradient-accumulation-count 2 --restore-path {runs}/tf1"
    code, said = say(f"{line} --epochs 3 --logs-path {tmp_path}/on", "tensorflow1")
    assert code == 0, said
    assert "training goes on" in said
    assert json.loads((tmp_path / "on" / "result.json").read_text())["updates"] == 6
    code, said = say(f"{line} --optimiser LARS", "tensorflow1")
    assert code == 2
    assert "--optimiser would change" in said


AGAIN = {
    "pytorch": f"python3 train.py {PT} --data-dir DATA --epoch 1 --checkpoint-path RUN",
    "tensorflow1": f"python train.py {TF1} --data-dir DATA --epochs 1 --logs-path RUN",
    "tensorflow2": f"python3 train.py {TF2} --dataset-path DATA --checkpoint-output-dir RUN",
}


@pytest.mark.parametrize("dialect", AGAIN)
def test_the_same_command_again_takes_the_folder_and_keeps_the_earlier_run(dialect, data, tmp_path, say):
    line = AGAIN[dialect].replace("DATA", str(data)).replace("RUN", str(tmp_path / "run")) + f" {TINY}"
    for expected in ("", "run-1", "run-2"):
        code, said = say(line, dialect)
        assert code == 0, said
        assert ("holds an earlier run" in said) == bool(expected)
        assert not expected or f"it is kept as {tmp_path / expected}" in said
    assert sorted(entry.name for entry in tmp_path.iterdir() if (entry / "options.yml").exists()) == [
        "run",
        "run-1",
        "run-2",
    ]


def test_a_run_that_is_under_way_is_not_moved(data, tmp_path, say):
    from conveyor.checkpoint.lock import RunLock

    line = AGAIN["tensorflow2"].replace("DATA", str(data)).replace("RUN", str(tmp_path / "run")) + f" {TINY}"
    assert say(line, "tensorflow2")[0] == 0
    with RunLock(tmp_path / "run"):
        code, said = say(line, "tensorflow2")
    assert code == 2
    assert "is in use by" in said
    assert not (tmp_path / "run-1").exists()
