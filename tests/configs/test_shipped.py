"""The named configurations: ours, and those of the older programs, which are translated from their own files."""

import pytest
import yaml

from conveyor.cli import main
from conveyor.dialects.configurations import BASES, EXAMPLES, FILES, our_name, texts
from conveyor.dialects.scripts import SCRIPTS, translate
from conveyor.options import Options
from conveyor.options.file import shipped

NAMED = [
    (dialect, script or SCRIPTS[dialect][0], file, prefix, name)
    for (dialect, script), files in FILES.items()
    for file, prefix in files
    for name in yaml.safe_load(texts(dialect, script)[file])
    if prefix is not None and name not in (*BASES, *EXAMPLES)
]


@pytest.mark.parametrize("case", NAMED, ids=lambda case: case[3] + case[4])
def test_both_languages_give_the_same_options(case, tmp_path):
    """The dialect's script with a user's copy of the file, and `conveyor train --config` with our name."""
    dialect, script, file, prefix, name = case
    path = tmp_path / file
    path.write_text(texts(dialect, script)[file])
    words = ["--config", name, "--config-path", str(path), "--dry-run"]
    theirs = translate(dialect, script, words, environment={}).options.replace(log_style="conveyor")
    ours = Options.from_mapping(shipped().resolve(prefix + name))
    assert theirs.flat() == ours.flat()


def test_a_base_gives_all_but_what_it_leaves_to_others():
    base, whole = (shipped().resolve(f"mk2_efficientnet_b4_{name}") for name in ("16ipus_base", "g1_16ipus"))
    assert "splits" not in base
    assert whole["splits"] == ["block2b", "block4b", "block6c"]
    assert all(whole[key] == base[key] for key in ("model", "norm_groups", "optimizer", "replicas", "mixup_alpha"))


def test_a_file_of_the_user_inherits_from_a_translated_configuration(tmp_path):
    from conveyor.options.file import configuration

    mine = tmp_path / "mine.yml"
    mine.write_text("short: {base: pytorch/resnet50, epochs: 2}\n")
    found, _ = configuration(f"{mine}:short")
    assert found == {**shipped().resolve("pytorch/resnet50"), "epochs": 2}


def test_a_configuration_of_a_dialect_is_printed_by_our_name():
    found = translate("tensorflow1", "train", ["--config", "mk2_resnet50_gn_16ipus", "--epochs", "3"], environment={})
    assert found.text() == "conveyor train --config mk2_resnet50_gn_16ipus --epochs 3.0 --log-style tensorflow1"
    assert our_name("pytorch", "train", "resnet50") == "pytorch/resnet50"
    assert our_name("pytorch", "run_benchmark", "resnet50") == "pytorch-inference/resnet50"
    assert our_name("tensorflow2", "train", "resnet8_test") == "resnet8_test"


def test_the_older_name_of_a_configuration_is_an_alias():
    one = translate("tensorflow1", "train", ["--config", "resnet50_bn_64_ipu"], environment={})
    other = translate("tensorflow1", "train", ["--config", "mk2_resnet50_bn_64ipus"], environment={})
    assert one.options == other.options


@pytest.mark.parametrize("name", yaml.safe_load(texts("tensorflow1")["tensorflow1_v3.yml"]))
def test_the_later_tensorflow1_names_are_understood(name):
    if name.endswith(("16ipus_base", "norm_base", "pod64_modification")):
        return  # pieces for others
    found = translate("tensorflow1", "train", ["--config", name, "--dry-run"], environment={})
    assert all("/relu" not in split or split.startswith("b") for split in found.options.batch.splits)
    assert not [note for note in found.notes if "unknown key" in note]


def test_every_configuration_of_ours_has_a_header_with_command_and_devices():
    from importlib import resources

    folder = resources.files("conveyor") / "configs"
    ours = {name: file for name, file in shipped().where.items() if file.startswith("configs/")}
    assert "cifar10_fast" in ours
    for name, file in ours.items():
        lines = (folder / file.removeprefix("configs/")).read_text().splitlines()
        at = next(index for index, line in enumerate(lines) if line == f"{name}:")
        assert lines[at - 2].startswith("# conveyor ")
        assert name in lines[at - 2]
        assert "devices" in lines[at - 1]


def test_list_and_show(capsys):
    assert main(["configs"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in shipped().where)
    assert main(["configs", "list", "mobilenet"]) == 0
    assert "resnet50" not in capsys.readouterr().out
    assert main(["configs", "show", "pytorch/mobilenet-v3-small-pod4"]) == 0
    shown = capsys.readouterr().out
    assert "(dialects/configs/pytorch.yml)" in shown
    assert yaml.safe_load(shown)["replicas"] == 4
    assert main(["configs", "show", "pytorch/mobilenet-v3-small-pod4", "--json"]) == 0
    assert '"replicas": 4' in capsys.readouterr().out


@pytest.mark.parametrize("words", [["show"], ["show", "resnet"], ["list", "nonesuch"], ["print"]])
def test_mistakes_are_one_sentence(words, capsys):
    assert main(["configs", *words]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
