"""What single options mean: the differences between the dialects, and the decisions where their texts contradict."""

from fractions import Fraction

import pytest
from tests.dialects.command_lines import COMPAT

from conveyor.dialects.launchers import find_script
from conveyor.dialects.scripts import translate
from conveyor.dialects.table import row
from conveyor.dialects.tensorflow1.training import host_step
from conveyor.dialects.translation import Launcher
from conveyor.dialects.values import convert

IMAGENET = ["--dataset", "imagenet", "--data-dir", "imagenet-data"]


def flat(dialect, script, words, **more):
    words = words.split() if isinstance(words, str) else words
    return translate(dialect, script, words, environment=more.pop("environment", {}), **more).options.flat()


def tf1(words="", **more):
    return flat("tensorflow1", "train", [*IMAGENET, *words.split()], **more)


def tf2(words="", **more):
    return flat("tensorflow2", "train", words, **more)


def pt(words="", **more):
    return flat("pytorch", "train", words, **more)


@pytest.mark.parametrize("flag", ["--enable-recomputation", "--xla-recompute", "--enable-recompute"])
def test_three_names_of_one_switch(flag):
    assert tf1(flag)["recompute"] == ("block",)
    staged = tf1(f"--model-size 50 --pipeline --shards 2 --pipeline-splits b2/0/relu {flag}")
    assert (staged["recompute"], staged["pipeline_schedule"]) == (("stage",), "gpipe")


def test_grouped_is_the_default_schedule():
    splits = "--model-size 50 --pipeline --shards 2 --pipeline-splits b2/0/relu"
    assert tf1(splits)["pipeline_schedule"] == "gpipe"
    assert tf1(f"{splits} --pipeline-schedule Interleaved")["pipeline_schedule"] == "1f1b"
    assert tf2("--pipeline-splits conv2d_1 --pipeline-schedule Sequential")["pipeline_schedule"] == "sequential"


def test_host_and_device_normalisation_in_both_spellings():
    assert tf1()["normalize_on"] == "device"
    assert tf1("--hostside-norm")["normalize_on"] == "host"
    assert tf1("--no-hostside-norm")["normalize_on"] == "device"
    assert tf1("--normalise-input")["normalization"] == "imagenet"
    assert tf1()["normalization"] == "mean"


def test_device_choice_in_both_spellings():
    assert tf1("--select-ipu 3")["device_ids"] == (3,)
    assert tf1("--select-ipus 3 4")["device_ids"] == (3,)
    assert tf1("--select-ipu AUTO")["device_ids"] == ()


def test_sharding_without_pipelining_is_automatic():
    found = tf1("--shards 2 --sharding-exclude-filter b0 --sharding-include-filter relu")
    assert (found["stages"], found["splits"], found["pipeline_schedule"]) == (2, ("auto",), "sequential")
    assert (found["split_exclude"], found["split_include"]) == (("b0",), ("relu",))


def test_one_shard_pipelines_are_recompute_points():
    found = tf1(
        "--model-size 50 --pipeline --shards 1 --pipeline-schedule Sequential --pipeline-splits b1/0/relu b2/0/relu"
    )
    assert (found["device_mapping"], found["pipeline_schedule"]) == ((0, 0, 0), "sequential")


def test_later_split_names_are_the_older_ones():
    found = tf1("--model-size 50 --pipeline --shards 2 --pipeline-splits stage3/unit4/relu")
    assert found["splits"] == ("b3/3/relu",)


@pytest.mark.parametrize(
    ("dialect", "words", "name"),
    [
        ("tensorflow1", "--model efficientnet --model-size 4", "efficientnet_b4"),
        ("tensorflow1", "--model efficientnet --model-size b0", "efficientnet_b0"),
        ("tensorflow1", "--model EfficientNet", "efficientnet_b0"),
        ("tensorflow1", "", "resnet18"),
        ("tensorflow1", "--model resnext", "resnext14"),
        ("tensorflow1", "--dataset cifar-10", "cifar_resnet20"),
        ("tensorflow1", "--dataset cifar-100 --model resnext", "cifar_resnext11"),
        ("tensorflow1", "--dataset cifar-10 --model-size 56", "cifar_bottleneck56"),
        ("pytorch", "--model resnext101", "resnext101_32x8d"),
        ("pytorch", "--model mobilenet", "mobilenet_v2"),
        ("pytorch", "", "resnet18"),
        ("tensorflow2", "", "toy_model"),
        ("tensorflow2", "--model cifar_resnet8", "cifar_resnet8"),
    ],
)
def test_model_names(dialect, words, name):
    before = IMAGENET if dialect == "tensorflow1" else []
    assert flat(dialect, "train", [*before, *words.split()])["model"] == name


@pytest.mark.parametrize(
    ("size", "name"), [("8", "cifar_resnet8"), ("110", "cifar_resnet110"), ("34", "resnet34"), ("x50", "resnext50")]
)
def test_popart_sizes_beyond_its_own_choices(size, name):
    found = flat("popart", "resnet_main", f"--data-dir . --size {size}")
    assert (found["model"], found["stride_in_1x1"], found["init"]) == (name, True, "glorot-channels")


def test_popart_validates_cifar_images_as_it_trains_on_them():
    assert flat("popart", "resnet_main", "--data-dir .")["validation_transform"] == "train"
    imagenet = flat("popart", "resnet_main", "--data-dir . --dataset IMAGENET --size 50")
    assert imagenet["validation_transform"] == "central"


def test_data_set_is_inferred_from_the_folder():
    for folder, name in (("/x/ImageNet-data", "imagenet"), ("cifar-100-binary", "cifar100"), ("my_cifar", "cifar10")):
        assert flat("tensorflow1", "train", ["--data-dir", folder])["data"] == name
        assert flat("tensorflow1", "train", [], environment={"DATA_DIR": folder})["data"] == name


def test_known_subfolders_are_found(tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    found = flat("tensorflow1", "train", ["--dataset", "cifar-10", "--data-dir", str(tmp_path)])
    assert found["data_dir"] == str(tmp_path / "cifar-10-batches-bin")


def test_defaults_follow_model_and_data():
    cifar = flat("tensorflow1", "train", "--dataset cifar-10 --data-dir cifar")
    assert (cifar["micro_batch_size"], cifar["epochs"], cifar["norm"], cifar["shortcut"]) == (32, 160.0, "batch", "A")
    assert (cifar["l2_regularization"], cifar["decay_exclude"]) == (1e-6, ())
    assert (cifar["normalization"], cifar["train_crop"]) == ("per-image", "pad")
    big = tf1("--model-size 50")
    assert (big["micro_batch_size"], big["epochs"], big["norm"], big["norm_groups"]) == (4, 100.0, "group", 32)
    assert (big["l2_regularization"], big["decay_exclude"], big["smoothing_form"]) == (1e-4, ("norm",), "uniform")
    mobile = tf1("--model efficientnet --optimiser RMSprop")
    assert (mobile["epochs"], mobile["norm_groups"], mobile["label_smoothing"]) == (350.0, 4, 0.1)
    assert (mobile["rmsprop_decay_per_sample"], mobile["optimizer_epsilon"]) == (2.0**-14, 0.001)
    assert (mobile["learning_rate"], mobile["lr_reference_batch"]) == (2.0**-14, 1)
    assert (mobile["smoothing_form"], mobile["stable_norm"]) == ("others", True)


def test_both_norms_at_once():
    assert tf1("--batch-norm --group-norm")["norm"] == "group"
    assert tf1("--batch-norm --group-norm --model efficientnet")["norm"] == "batch"
    assert tf1("--batch-norm --BN-decay 0.9")["norm_momentum"] == 0.1


def test_weight_decay_means_different_things():
    assert tf1("--weight-decay 0.1")["l2_regularization"] == 0.1
    assert tf1("--weight-decay 0.1")["weight_decay"] == 0.0
    assert tf2("--weight-decay 0.1")["weight_decay"] == 0.1
    later = pt("--micro-batch-size 2")
    assert (later["l2_regularization"], later["decay_exclude"]) == (1e-4, ("1d",))
    assert pt()["l2_regularization"] == 0.0
    assert pt("--optimizer adamw --weight-decay 0.3 --micro-batch-size 2")["weight_decay"] == 0.3


def test_rates():
    assert tf1("--abs-learning-rate 0.7")["lr_reference_batch"] is None
    assert tf1("--base-learning-rate -9.5")["learning_rate"] == 2.0**-9.5
    assert tf1("--base-learning-rate 0")["learning_rate"] == 2.0**-8
    assert pt("--lr 0.2")["learning_rate"] == 0.2


def test_stepped_values_of_tensorflow2_are_absolute():
    found = flat(
        "tensorflow2",
        "train",
        ["--lr-schedule", "stepped", "--lr-schedule-params", "{values: [0.4, 0.1], boundaries: [3]}"],
    )
    assert (found["learning_rate"], found["lr_reference_batch"], found["lr_values"]) == (0.4, None, (0.25,))
    assert [str(drop) for drop in found["lr_drops"]] == ["3ep"]


def test_schedules_of_tensorflow1():
    stepped = tf1("--learning-rate-schedule 0.5,0.75")
    assert [str(drop) for drop in stepped["lr_drops"]] == ["50%", "75%"]
    exponential = tf1("--lr-schedule exponential --lr-drops 10 --lr-decay-rate 0.9")
    assert (str(exponential["lr_decay_every"]), exponential["lr_decay"]) == ("10%", 0.9)
    polynomial = tf1("--lr-schedule polynomial_decay_lr --abs-learning-rate 4 --abs-end-learning-rate 0.001")
    assert (polynomial["lr_end"], polynomial["lr_power"], polynomial["warmup_mode"]) == (0.00025, 2.0, "shift")


def test_iterations_win_over_epochs():
    found = tf1("--iterations 10")
    assert (found["updates"], found["epochs"], str(found["warmup"])) == (10, None, "0ep")
    both = tf1("--iterations 10 --epochs 50")
    assert (both["updates"], both["epochs"], str(both["warmup"])) == (10, None, "10%")
    assert both["updates_per_log"] == 500


def test_booleans_of_tensorflow2():
    for text in ("", "True", "t", "1", "YES", "y", "on"):
        assert tf2(f"--half-partials {text}")["half_partials"] is True
    for text in ("False", "f", "0", "no", "N", "off"):
        assert tf2(f"--half-partials {text}")["half_partials"] is False


def test_synthetic_data_on_either_side():
    for word in ("host", "cpu"):
        assert tf2(f"--synthetic-data {word}")["generated_data"] is True
    assert tf2("--synthetic-data ipu")["synthetic_data"] is True
    assert tf1("--generated-data --mixup-alpha 0.5")["mixup_alpha"] == 0.0
    assert pt("--data synthetic")["max_train_images"] == 60_000


def test_cifar100_is_there_for_tensorflow2():
    assert tf2("--dataset cifar100")["data"] == "cifar100"


def test_pytorch_enlarges_cifar():
    found = pt("--data cifar10")
    assert (found["image_size"], found["train_crop"], found["flip"]) == (224, "resize-resized", "none")
    assert pt("--norm-type batch")["flip"] == "random"


def test_pytorch_checkpoints_only_with_a_folder():
    assert pt()["checkpoints_per_epoch"] == 0
    found = pt("--checkpoint-path here")
    assert (found["checkpoints_per_epoch"], found["run_dir"]) == (1, "here")
    assert pt("--checkpoint-output-dir here --checkpoint-save-freq 5")["checkpoints_per_epoch"] == Fraction(1, 5)


def test_growing_loss_scale_of_the_later_pytorch_program():
    assert pt("--initial-loss-scaling 16 --loss-scaling 128")["loss_scale"] == "16..128"
    assert pt("--initial-loss-scaling 128 --loss-scaling 128")["loss_scale"] == "128"


def test_launchers_count_replicas_differently():
    launcher = Launcher(replicas=16, instances=8)
    assert tf1("--replicas 3", launcher=launcher)["replicas"] == 16
    assert tf2("--num-replicas 3", launcher=launcher)["replicas"] == 16
    notes = translate("tensorflow2", "train", ["--num-replicas", "3"], environment={}, launcher=launcher).notes
    assert any("the launcher's 16 replicas hold" in note for note in notes)
    assert launcher.local_replicas == 2
    quiet = translate("tensorflow1", "train", [*IMAGENET, "--replicas", "2"], environment={}, launcher=launcher).notes
    assert not quiet


def test_launcher_numbers_come_through_the_environment():
    environment = {"CONVEYOR_REPLICAS": "4", "CONVEYOR_INSTANCES": "2"}
    assert flat("tensorflow2", "train", "", environment=environment)["replicas"] == 4


def test_options_without_effect_are_noted_once():
    found = translate(
        "tensorflow1", "train", [*IMAGENET, "--disable-variable-offloading", "--num-io-tiles", "32"], environment={}
    )
    assert [note.split()[0] for note in found.notes] == ["--disable-variable-offloading", "--num-io-tiles"]


def test_our_own_options_follow_in_full():
    found = tf1("--updates 7 --layout 2x1 --max-train-images 500 --no-report")
    assert (found["updates"], found["layout"], found["max_train_images"], found["report"]) == (7, "2x1", 500, False)
    assert found["epochs"] is None


def test_yaml_traps(tmp_path):
    file = tmp_path / "own.yml"
    file.write_text(
        "x:\n  dataset: imagenet\n  precision: 32.32\n  weight_decay: 1e-5\n  ckpts-per-epoch: 2\n"
        "  available_memory_proportion: '0.15'\n  no_validation: true\n  gradient_accumulation: 64\n  shards: 1.0\n"
    )
    found = translate("tensorflow1", "train", ["--config", "x", "--config-path", str(file)], environment={})
    options = found.options.flat()
    assert (options["precision"], options["l2_regularization"], options["checkpoints_per_epoch"]) == ("32.32", 1e-5, 2)
    assert (options["validation"], options["accumulation"]) == (False, 1)
    assert any("unknown key 'gradient_accumulation'" in note for note in found.notes)


def test_command_line_wins_over_configuration():
    found = flat("tensorflow1", "train", "--config mk2_resnet50_gn_16ipus --epochs 3 --batch-size 2")
    assert (found["epochs"], found["micro_batch_size"], found["replicas"]) == (3.0, 2, 16)


def test_lists_in_one_text_are_split():
    found = flat("pytorch", "train", "--config efficientnet-b0-16ipu-mk1")
    assert found["splits"] == ("_blocks/1/_project_conv", "_blocks/4/_bn1")


def test_values_convert_by_kind():
    assert convert(row("--x", "any", nothing="x"), "False") is True
    assert convert(row("--x", "frequency", nothing="x"), "1/3") == Fraction(1, 3)
    assert convert(row("--x", "upper", nothing="x"), "on") == "ON"
    assert convert(row("--x", "ints", nothing="x"), ["1", "2"]) == [1, 2]


@pytest.mark.parametrize(
    ("period", "limit", "step"), [(78, 1000, 78), (1251, 1000, 1251), (20018, 1000, 1000), (1562, 1000, 781), (5, 1, 1)]
)
def test_host_step(period, limit, step):
    assert host_step(period, limit) == step


def test_the_run_folder_is_named_after_the_model():
    folder = translate("tensorflow1", "train", ["--dataset", "cifar-10", "--data-dir", "cifar"], environment={}).folder
    assert folder.startswith("logs/RN20_bs32_BN_16.16_v")
    assert folder.endswith("_{random}")
    words = [
        *IMAGENET,
        *[
            "--model",
            "resnext",
            "--replicas",
            "8",
            "--gradient-accumulation-count",
            "16",
            "--name-suffix",
            "try",
            "--no-stochastic-rounding",
        ],
    ]
    assert "RNX14_bs1x8rx16a_GN32_16.16_noSR_try_v" in translate("tensorflow1", "train", words, environment={}).folder


def test_scripts_are_found_by_their_content_or_their_path(tmp_path):
    folder = COMPAT / "tensorflow1"
    assert find_script(["python3", "--config", "x"], folder).name == "train"
    assert find_script(["python", "validation.py"], folder).name == "validation"
    elsewhere = find_script(["python3", "workspace/applications/tensorflow/cnns/training/train.py"], tmp_path)
    assert elsewhere.dialect == "tensorflow1"
    assert find_script(["ls"], folder) is None
    (tmp_path / "own.py").write_text("print(1)\n")
    assert find_script(["python3", "own.py"], tmp_path) is None


def test_projects_in_weights_and_biases():
    assert tf1("--wandb")["wandb_project"] == "tf-cnn"
    assert tf2("--wandb true")["wandb_project"] == "tf2-resnet50"
    assert pt("--wandb")["wandb_project"] == "pytorch-cnn"
    assert pt("--wandb --wandb-weight-histogram")["weight_histograms"] is True
    assert pt()["weight_histograms"] is False


def test_serving_scripts_write_a_saved_model_or_say_what_they_wrote(tmp_path):
    from importlib.util import find_spec

    for script, words in (("export_for_serving", ["--export-dir", str(tmp_path / "out")]), ("send_request", [])):
        made = translate("tensorflow2", script, ["--model", "cifar_resnet8", *words], environment={})
        noted = any("TensorFlow is not installed, so the model is written as ONNX" in note for note in made.notes)
        installed = find_spec("tensorflow") is not None
        assert (made.settings["form"], noted) == (("saved-model", False) if installed else ("onnx", True))


def test_an_export_names_the_options_that_a_checkpoint_overrules(tmp_path):
    words = [
        "--model",
        "cifar_resnet8",
        "--export-dir",
        str(tmp_path / "out"),
        "--checkpoint-input-path",
        str(tmp_path),
    ]
    made = translate("tensorflow2", "export_for_serving", words, environment={})
    assert any("so without effect: --model-name" in note for note in made.notes)
