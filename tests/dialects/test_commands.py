"""Every printed command line is accepted from its folder, and means the numbers that plain arithmetic gives."""

import json
from fractions import Fraction

import pytest
from tests.dialects.command_lines import RUNNABLE, STORED, command_of, entries, plan_of, run_line, with_stored_run

from conveyor.dialects import benchmarks

IMAGENET, CIFAR = 1_281_167, 50_000
TF_CONFIG = {"TF_CONFIG": '{"cluster":{"worker":["worker0:3636","worker1:3636"]},"task":{"type":"worker","index":0}}'}
BY_ID = {entry["id"]: entry for entry in entries()}
DRY = [entry for entry in entries() if entry["kind"] in (*RUNNABLE[:4], "fragment")]
REFUSED = {"tensorflow2-22": "It is not possible to log 2.0 epochs a time for 5 epochs"}


def test_all_86_are_here():
    kinds = [entry["kind"] for entry in entries()]
    assert len(kinds) == 86
    assert {kind: kinds.count(kind) for kind in RUNNABLE} == {
        "train": 42, "validate": 11, "restore": 2, "serve": 1, "benchmark": 2, "help": 1, "tool": 1,
    }  # fmt: skip


@pytest.mark.parametrize("entry", DRY, ids=lambda entry: entry["id"])
def test_a_printed_command_is_accepted(entry, capsys, tmp_path):
    if entry["id"] in REFUSED:
        assert run_line(command_of(entry), entry["folder"], ["--dry-run"]) == 2
        assert REFUSED[entry["id"]] in capsys.readouterr().err
        return
    plan = plan_of(with_stored_run(entry, tmp_path / "run"), entry["folder"], capsys)
    assert plan["command"].startswith("conveyor ")
    assert plan["global_batch"] == plan["micro_batch"] * plan["accumulation"] * plan["replicas"]
    for value in entry.get("variants", {}).get("--batch-size", []):
        plan = plan_of(command_of(entry), entry["folder"], capsys, ["--batch-size", str(value)])
        assert plan["micro_batch"] == plan["validation"]["batch"] == value


# id: images, micro-batch, accumulation, replicas, stages, epochs, rate exponent, warm-up epochs, logs, checkpoints, precision
TENSORFLOW1 = {
    "tensorflow1-2": (IMAGENET, 4, 1, 1, 1, 100, -8, 5, 16, 1, "16.16"),
    "tensorflow1-6": (IMAGENET, 8, 1, 1, 1, 100, -8, 5, 16, 1, "16.16"),
    "tensorflow1-7": (IMAGENET, 2, 128, 4, 2, 100, -8, 5, 16, 1, "16.16"),
    "tensorflow1-8": (IMAGENET, 8, 8, 16, 1, 65, -11, 5, 16, 1, "16.16"),
    "tensorflow1-9": (IMAGENET, 1, 1, 1, 1, 100, -8, 5, 16, 1, "16.16"),
    "tensorflow1-10": (IMAGENET, 4, 64, 4, 4, 65, -11, 5, 16, 1, "16.16"),
    "tensorflow1-11": (IMAGENET, 6, 16, 8, 2, 120, -11, 5, 16, 1, "16.16"),
    "tensorflow1-12": (IMAGENET, 4, 128, 1, 4, 350, -14, 5, 16, 1, "16.32"),
    "tensorflow1-13": (IMAGENET, 8, 64, 1, 4, 350, -14, 5, 16, 1, "16.32"),
    "tensorflow1-15": (CIFAR, 32, 1, 1, 1, 20, -6, 5, 16, 1, "16.16"),
    "tensorflow1-16": (CIFAR, 32, 1, 1, 1, 50, -6, 5, 16, 1, "16.16"),
    "tensorflow1-17": (IMAGENET, 8, 8, 16, 1, 65, -11, 5, 1, 1, "16.16"),
    "tensorflow1-19": (IMAGENET, 16, 256, 4, 4, 100, -13, 5, 1, 1, "16.32"),
    "tensorflow1-21": (IMAGENET, 16, 64, 16, 4, 100, -13, 5, 1, 1, "16.32"),
    "tensorflow1-23": (IMAGENET, 16, 32, 32, 4, 100, -13, 5, 1, 1, "16.32"),
    "tensorflow1-29": (CIFAR, 32, 1, 1, 1, 10, -6, 5, 1, 0, "16.16"),
    "benchmarks-1": (IMAGENET, 16, 1024, 1, 4, 1, -11, 5, 16, 0, "16.32"),
    "benchmarks-2": (IMAGENET, 16, 256, 4, 4, 1, -11, 5, 16, 0, "16.32"),
    "benchmarks-3": (IMAGENET, 6, 64, 2, 2, 2, -11, 5, 16, 0, "16.16"),
    "benchmarks-4": (IMAGENET, 6, 16, 8, 2, 2, -11, 5, 16, 0, "16.16"),
    "benchmarks-5": (IMAGENET, 5, 40, 1, 4, 2, -14, 5, 16, 1, "16.32"),
    "benchmarks-6": (IMAGENET, 5, 40, 4, 4, 1, -14, 5, 16, 1, "16.32"),
    "benchmarks-7": (IMAGENET, 5, 40, 1, 4, 2, -14, 5, 16, 1, "16.32"),
    "benchmarks-8": (IMAGENET, 5, 40, 4, 4, 1, -14, 5, 16, 1, "16.32"),
}


@pytest.mark.parametrize("name", TENSORFLOW1)
def test_tensorflow1_numbers(name, capsys):
    images, micro, accumulation, replicas, stages, epochs, exponent, warm, logs, saves, precision = TENSORFLOW1[name]
    batch = micro * accumulation * replicas
    per_epoch, total = images // batch, images * epochs // batch
    log = per_epoch // logs
    step = log if log < 1000 else log // round(log / 1000)
    plan = plan_of(command_of(BY_ID[name]), BY_ID[name]["folder"], capsys)
    assert (plan["micro_batch"], plan["accumulation"], plan["replicas"], plan["stages"]) == (
        micro,
        accumulation,
        replicas,
        stages,
    )
    assert plan["devices"] == replicas * stages
    assert plan["global_batch"] == batch
    assert (plan["updates_per_epoch"], plan["updates_total"]) == (per_epoch, total)
    assert plan["warmup_updates"] == total * warm // epochs
    assert plan["peak_lr"] == 2.0**exponent * batch
    assert plan["updates_per_log"] == log
    assert plan["updates_per_checkpoint"] == (per_epoch // saves if saves else 0)
    assert (plan["updates_per_call"], plan["calls"]) == (step, -(-total // step))
    assert plan["precision"] == precision


# id: images, micro-batch, accumulation, replicas, stages, epochs, rate per sample, updates per log, updates per call
TENSORFLOW2 = {
    "tensorflow2-15": (CIFAR, 1, 1, 16, 1, 1, 1e-4, 3125, 3125),
    "tensorflow2-16": (CIFAR, 1, 1, 4, 2, 1, 1e-4, 12500, 12500),
    "tensorflow2-17": (CIFAR, 8, 8, 1, 1, 6, 1e-4, 781, 781),
    "tensorflow2-18": (CIFAR, 8, 8, 1, 1, 6, 1e-4, 781, 781),
    "tensorflow2-19": (CIFAR, 8, 8, 1, 1, 6, 1e-4, 71, 71),
    "tensorflow2-20": (CIFAR, 8, 8, 1, 1, 6, 1e-4, 2 * 781, 781),
    "tensorflow2-21": (CIFAR, 8, 8, 1, 1, 6, 1e-4, 3 * 781, 781),
    "tensorflow2-23": (CIFAR, 8, 8, 1, 1, 6, 1e-4, 0, 781),
    "tensorflow2-28": (CIFAR, 1, 1, 1, 1, 1, 1e-4, 50000, 50000),
    "tensorflow2-29": (IMAGENET, 16, 128, 4, 4, 100, 0.0001220703125, 156, 156),
}


@pytest.mark.parametrize("name", TENSORFLOW2)
def test_tensorflow2_numbers(name, capsys):
    images, micro, accumulation, replicas, stages, epochs, rate, log, call = TENSORFLOW2[name]
    batch = micro * accumulation * replicas
    total = images // batch * epochs
    plan = plan_of(command_of(BY_ID[name]), "tensorflow2", capsys)
    assert (plan["micro_batch"], plan["accumulation"], plan["replicas"], plan["stages"]) == (
        micro,
        accumulation,
        replicas,
        stages,
    )
    assert (plan["updates_per_epoch"], plan["updates_total"]) == (images // batch, total)
    assert plan["peak_lr"] == pytest.approx(rate * batch)
    assert (plan["updates_per_log"], plan["updates_per_call"], plan["calls"]) == (log, call, total // call)


# logs per epoch, epochs: updates per log, updates per call and calls without checkpoints
WORKED = {
    ("1", 6): (781, 781, 6),
    ("2", 6): (781, 781, 6),
    ("10", 6): (71, 71, 66),
    ("1/2", 6): (1562, 1562, 3),
    ("1/3", 6): (2343, 2343, 2),
    ("0", 6): (0, 4686, 1),
    ("4", 6): (781, 781, 6),
    ("40", 6): (71, 71, 66),
    ("50", 6): (11, 11, 426),
}


@pytest.mark.parametrize(("logs", "epochs"), WORKED)
def test_host_events_without_checkpoints(logs, epochs, capsys):
    words = (
        f"python3 train.py --model cifar_resnet8 --num-epochs {epochs} --micro-batch-size 8 --gradient-accumulation 8"
    )
    plan = plan_of(f"{words} --logs-per-epoch {logs} --ckpts-per-epoch 0", "tensorflow2", capsys)
    assert (plan["updates_per_log"], plan["updates_per_call"], plan["calls"]) == WORKED[logs, epochs]
    adjusted = logs in ("2", "10", "4", "40", "50")
    assert any("not possible" in note for note in plan["notes"]) == adjusted
    assert any("one call" in note for note in plan["notes"]) == (logs == "0")


# configuration, further words: global batch, accumulation, updates per epoch, per log, per checkpoint, per call, calls
CONFIGURED = {
    ("resnet50_16ipus_8k_bn_pipeline", ""): (8192, 128, 156, 156, 156, 156, 100),
    ("resnet50_mlperf_bs16", ""): (2304, 9, 556, 556, 2224, 556, 44),
    ("resnet50_mlperf_pod16_bs20", ""): (1920, 6, 667, 667, 2668, 667, 40),
    ("resnet50_mlperf_pod16_bs20", "--logs-per-epoch 29 --num-epochs 5"): (1920, 6, 667, 23, 3335, 23, 145),
    ("resnet50_mlperf_pod4_bs20", "--logs-per-epoch 29 --num-epochs 5"): (480, 6, 2669, 157, 13345, 157, 85),
    ("resnet50_mlperf_pod16_lars", ""): (3456, 12, 370, 370, 1480, 370, 38),
    ("resnet8_16ipus_bn", ""): (2000, 5, 25, 25, 25, 25, 70),
}


@pytest.mark.parametrize(("config", "words"), CONFIGURED)
def test_configured_events(config, words, capsys):
    plan = plan_of(f"python3 train.py --config {config} {words}", "tensorflow2", capsys)
    found = [plan[key] for key in ("global_batch", "accumulation", "updates_per_epoch", "updates_per_log")]
    found += [plan[key] for key in ("updates_per_checkpoint", "updates_per_call", "calls")]
    assert tuple(found) == CONFIGURED[config, words]


def test_single_device_stages_count_once(capsys):
    plan = plan_of("python3 train.py --config resnet50_mlperf_bs16", "tensorflow2", capsys)
    assert (plan["stages"], plan["devices"]) == (4, 16)


# id: micro-batch, accumulation, replicas, stages, updates per epoch, updates per call
PYTORCH = {
    "pytorch-1": (IMAGENET, 1, 1, 1, 1, IMAGENET),
    "pytorch-2": (CIFAR, 4, 64, 4, 4, 2),
    "pytorch-3": (CIFAR, 4, 128, 4, 4, 24),
}


@pytest.mark.parametrize("name", PYTORCH)
def test_pytorch_numbers(name, capsys):
    images, micro, accumulation, replicas, stages, call = PYTORCH[name]
    plan = plan_of(command_of(BY_ID[name]), "pytorch", capsys)
    per_epoch = images // (micro * accumulation * replicas)
    assert (plan["stages"], plan["updates_per_epoch"], plan["updates_total"]) == (stages, per_epoch, 10 * per_epoch)
    assert (plan["peak_lr"], plan["precision"], plan["image_size"]) == (0.01, "16.16", 224)
    assert (plan["updates_per_call"], plan["calls"]) == (call, -(-10 * per_epoch // call))


def test_popart_numbers(capsys):
    plan = plan_of(command_of(BY_ID["popart-4"]), "popart", capsys)
    assert (plan["model"], plan["global_batch"], plan["updates_total"]) == ("cifar_resnet20", 32, 30 * (CIFAR // 32))
    assert (plan["peak_lr"], plan["updates_per_log"], plan["in_channels"]) == (2.0**-6 * 32, 250, 4)
    words = "python resnet_main.py --data-dir . --batch-size 64 --gradient-accumulation-factor 4 --replication-factor 2 --num-ipus 4"
    plan = plan_of(words, "popart", capsys)
    assert (plan["micro_batch"], plan["replicas"], plan["stages"], plan["global_batch"]) == (32, 2, 2, 256)
    assert plan["peak_lr"] == 1.0


def test_workers_of_tf_config_multiply_replicas(capsys):
    plan = plan_of(command_of(BY_ID["tensorflow1-25"]), "tensorflow1", capsys, variables=TF_CONFIG)
    assert (plan["replicas"], plan["global_batch"], plan["updates_per_call"]) == (8, 2048, 1)
    assert plan["peak_lr"] == 2.0**-11 * 2048
    plan = plan_of(command_of(BY_ID["tensorflow1-27"]), "tensorflow1", capsys)
    assert (plan["replicas"], plan["global_batch"]) == (8, 2 * 4 * 64 * 4)


def test_validation_spreads_over_the_launchers_replicas(capsys, tmp_path):
    for name, replicas, batch in (("tensorflow1-18", 16, 8), ("tensorflow1-20", 16, 16), ("benchmarks-12", 4, 1)):
        plan = plan_of(with_stored_run(BY_ID[name], tmp_path / name), "tensorflow1", capsys)
        assert (plan["validation"]["replicas"], plan["validation"]["batch"], plan["stages"]) == (replicas, batch, 1)
        assert plan["command"].startswith("conveyor validate")


def test_resuming_under_a_launcher(capsys, tmp_path):
    plan = plan_of(with_stored_run(BY_ID["tensorflow1-22"], tmp_path / "a"), "tensorflow1", capsys)
    assert plan["command"].startswith("conveyor restore --")
    assert any("training goes on" in note for note in plan["notes"])
    plan = plan_of(with_stored_run(BY_ID["tensorflow1-3"], tmp_path / "b"), "tensorflow1", capsys)
    assert "conveyor restore" in plan["command"]


@pytest.mark.parametrize("name", STORED)
def test_a_dry_run_without_the_stored_run_says_so(name, capsys):
    """No plan of a default run where the path leads nowhere."""
    assert run_line(command_of(BY_ID[name]), BY_ID[name]["folder"], ["--dry-run"]) == 2
    printed = STORED[name][0].rstrip("/")
    assert f"there is nothing at {printed}" in capsys.readouterr().err


def test_the_plan_of_a_validation_has_no_training(capsys, tmp_path):
    for name in ("tensorflow1-18", "pytorch-5", "benchmarks-9"):
        plan = plan_of(with_stored_run(BY_ID[name], tmp_path / name), BY_ID[name]["folder"], capsys)
        assert plan["validation"]["images"] > 0
        absent = {"epochs", "updates_total", "peak_lr", "optimiser", "schedule", "calls", "split_points"}
        assert not absent & set(plan)
        assert run_line(with_stored_run(BY_ID[name], tmp_path / name), BY_ID[name]["folder"], ["--dry-run"]) == 0
        text = capsys.readouterr().out
        assert not [
            line for line in text.splitlines() if line.startswith(("rate ", "optimiser ", "events ", "length "))
        ]


def test_the_lost_value_and_the_pool_are_noted(capsys):
    plan = plan_of(command_of(BY_ID["tensorflow1-19"]), "tensorflow1", capsys)
    assert any("--ipus-per-replica has no value" in note for note in plan["notes"])
    plan = plan_of(command_of(BY_ID["tensorflow1-23"]), "tensorflow1", capsys)
    assert sum("no device pool" in note for note in plan["notes"]) == 7


def test_help_shows_the_options_of_the_model(capsys):
    assert run_line(command_of(BY_ID["tensorflow1-30"]), "tensorflow1") == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: train.py")
    assert "--block-survival-prob" in text
    assert "--convolution-groups" not in text
    assert run_line("python train.py --help", "tensorflow1") == 0
    assert "--block-survival-prob" not in capsys.readouterr().out
    assert run_line("python resnet_main.py --help", "popart") == 0
    assert run_line("python3 validation.py --help", "tensorflow1") == 0
    assert "--repeat" in capsys.readouterr().out


def test_benchmarks_are_our_runner():
    words = command_of(BY_ID["tensorflow2-11"]).split()[3:]
    assert benchmarks.translate(words) == [
        "bench",
        "run",
        "--spec",
        "benchmarks.yml",
        "--benchmark",
        "tf2_resnet50_train_real_pod16",
    ]


def test_profile_and_devices(capsys, monkeypatch):
    plan = plan_of(command_of(BY_ID["tensorflow1-33"]), "tensorflow1", capsys, variables={"DATA_DIR": "cifar-10"})
    assert (plan["model"], plan["data"]) == ("cifar_resnet20", "cifar10")
    assert "--profile layers --profile-dir profile_dir" in plan["command"]
    assert run_line("gc-info -l", "tensorflow1") == 0
    assert capsys.readouterr().out.strip()


def test_serving_plan(capsys):
    plan = plan_of(command_of(BY_ID["tensorflow2-30"]), "tensorflow2", capsys)
    assert plan["micro_batch"] == 16
    for words in ("--batch-size 8", "--clients 32", "--num-images 1000", "--max-batch 16"):
        assert words in plan["command"]
    assert any("served on port 8502" in note for note in plan["notes"])


def test_the_equivalent_command_gives_the_same_plan(capsys):
    """What is printed is what is meant: reading it again gives the same numbers."""
    import shlex

    from conveyor.cli import main

    same = (
        "global_batch",
        "updates_total",
        "warmup_updates",
        "peak_lr",
        "updates_per_log",
        "calls",
        "stages",
        "precision",
    )
    for name in ("tensorflow1-10", "tensorflow1-13", "tensorflow2-29", "pytorch-3", "popart-4", "benchmarks-6"):
        plan = plan_of(command_of(BY_ID[name]), BY_ID[name]["folder"], capsys)
        words = shlex.split(plan["command"])[1:]
        assert main(words) == 0
        again = json.loads(capsys.readouterr().out)
        assert {key: again[key] for key in same} == {key: plan[key] for key in same}


def test_fractions_are_exact():
    assert Fraction(1, 49) * 49 == 1
    plan_words = "python3 train.py --num-epochs 49 --logs-per-epoch 1/49 --dry-run"
    assert run_line(plan_words, "tensorflow2") == 0
