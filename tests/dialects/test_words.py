"""Errors name what was typed, with the dialect's choices; help tells which model it is about."""

import pytest
from tests.dialects.command_lines import run_line

CIFAR = "python train.py --dataset cifar-10 --generated-data --layout 1x1 "
TF2 = "python3 train.py "
PT = "python3 train.py "

# folder, command line, the whole sentence after "error: ", or its beginning when it ends with "..."
SENTENCES = [
    ("tensorflow1", CIFAR + "--epoch 0", "--epoch 0: give a number above 0"),
    ("tensorflow1", CIFAR + "--micro-batch-size 0", "--micro-batch-size is 0, but must be at least 1"),
    ("tensorflow1", CIFAR + "--weight-dec=-1", "--weight-dec (here --l2-regularization) is -1; the smallest value is 0"),
    ("tensorflow1", CIFAR + "--accumulation 0", "--accumulation is 0; the smallest value is 1"),
    ("tensorflow1", CIFAR + "--seed", "argument --seed: expected one argument"),
    ("tensorflow1", CIFAR + "--nonsense", "there is no option --nonsense..."),
    ("tensorflow1", CIFAR + "--optimiser adam", "--optimiser cannot be 'adam' (choose from SGD, RMSprop, momentum, LARS)"),
    ("tensorflow1", CIFAR + "--init-path nowhere --log-dir TMP", "there is no weights file nowhere..."),
    (
        "tensorflow1",
        CIFAR + "--shards 2 --sharding-include-filter nowhere --log-dir TMP",
        "2 stages need 1 place to split, and --sharding-include-filter and --sharding-exclude-filter leave 0: ...",
    ),
    ("tensorflow1", CIFAR + "--logs-path configs.yml", "cannot write to the run folder configs.yml (File exists): choose another --logs-path"),
    ("tensorflow2", TF2 + "--pipeline-splits conv2d_7", "--pipeline-splits: toy_model has no layer 'conv2d_7' to split at (nearest: conv2d_1..."),
    (
        "tensorflow2",
        TF2 + "--model cifar_resnet8 --pipeline-splits conv3_block1_ad",
        "--pipeline-splits: cifar_resnet8 has no layer 'conv3_block1_ad' to split at (nearest: conv3_block1_add, conv4_block1_add...",
    ),
    (
        "tensorflow2",
        TF2 + "--model cifar_resnet8 --pipeline-splits conv3_block1_add conv2_block1_add",
        "--pipeline-splits: split points must follow the order of the layers, but 'conv2_block1_add' is before...",
    ),
    ("tensorflow2", TF2 + "--training False --validation False", "--training False and --validation False leave nothing to do..."),
    ("pytorch", PT + "--lr -0.1", "--lr is -0.1; the smallest value is 0"),
    ("pytorch", PT + "--model vgg", "--model cannot be 'vgg' (choose from resnet18, resnet34, resnet50..."),
    ("pytorch", PT + "--pipeline-splits layer1/7", "--pipeline-splits: resnet18 has no layer 'layer1/7' to split at (nearest: layer4/1/..."),
    ("pytorch", PT + "--config resnet51", "there is no configuration 'resnet51' in..."),
]  # fmt: skip


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "dry-run"])
@pytest.mark.parametrize(("folder", "command", "sentence"), SENTENCES, ids=lambda value: None)
def test_an_error_speaks_of_what_was_typed(folder, command, sentence, dry, capsys, tmp_path):
    assert run_line(command.replace("TMP", str(tmp_path)), folder, dry) == 2
    (line,) = capsys.readouterr().err.splitlines()
    said = line.removeprefix("train.py: error: ")
    assert said.startswith(sentence.removesuffix("...")) if sentence.endswith("...") else said == sentence


def test_names_in_two_files_are_told_once(capsys):
    assert run_line("python3 train.py --config my_confi", "tensorflow1") == 2
    assert capsys.readouterr().err.count("'my_config'") == 1


def test_the_launcher_does_not_change_the_words(capsys):
    assert run_line(f"poprun --num-replicas 2 {CIFAR} --weight-dec=-1", "tensorflow1") == 2
    assert capsys.readouterr().err.startswith("poprun: error: --weight-dec (here --l2-regularization) is -1")


@pytest.mark.parametrize(
    ("words", "family"),
    [("", "resnet"), ("--model resnext", "resnext"), ("--config mk2_efficientnet_b4_g16_16ipus", "efficientnet")],
)
def test_help_shows_the_options_of_the_model_that_was_chosen(words, family, capsys):
    assert run_line(f"python3 train.py --help {words}", "tensorflow1") == 0
    said = capsys.readouterr().out
    assert f"Model options of {family}:" in said
    assert ("--expand-ratio" in said) == (family == "efficientnet")


@pytest.mark.parametrize(("words", "part"), [("--model vgg", "no model 'vgg'"), ("--config x", "no configuration 'x'")])
def test_help_about_nothing_says_so(words, part, capsys):
    assert run_line(f"python3 train.py {words} --help", "tensorflow1") == 2
    assert part in capsys.readouterr().err


def test_help_speaks_of_models_only_where_they_matter(capsys):
    assert run_line("python3 train.py --help", "tensorflow2") == 0
    assert "options of that model" not in capsys.readouterr().out
