"""Every option that some version of the programs declares stands in a table, with one outcome."""

import json
from pathlib import Path

import pytest

from conveyor.dialects.popart import table as popart_table
from conveyor.dialects.pytorch import table as pytorch_table
from conveyor.dialects.table import Row, Table, row
from conveyor.dialects.tensorflow1 import table as tensorflow1_table
from conveyor.dialects.tensorflow2 import table as tensorflow2_table
from conveyor.errors import UserError
from conveyor.options import specs

TABLES = {
    "pytorch": pytorch_table,
    "tensorflow1": tensorflow1_table,
    "tensorflow2": tensorflow2_table,
    "popart": popart_table,
}
DECLARED = json.loads((Path(__file__).parent / "option_names.json").read_text())


@pytest.mark.parametrize("version", DECLARED)
def test_every_declared_option_is_in_the_table(version):
    table = TABLES[version.split()[0]].TABLE
    assert set(DECLARED[version]) - table.spellings() <= {"--help"}


@pytest.mark.parametrize("dialect", TABLES)
def test_rows_name_real_options_and_have_one_outcome(dialect):
    for each in TABLES[dialect].TABLE:
        assert bool(each.to) + bool(each.ours) + bool(each.nothing) == 1
        if each.to:
            assert each.to in specs()
        for flag in [word.strip("`") for word in each.ours.split() if word.startswith("`--")]:
            name = flag.lstrip("-").split("`")[0].replace("-", "_")
            bare = name.removeprefix("no_")
            known = {
                "dry_run",
                "config",
                "grpc_port",
                "host",
                "clients",
                "num_images",
                "use_async",
                "verbose",
                "batch_size",
                "output",
                "last",
                "mode",
                "decay",
                "discard_last",
                "split",
            }
            assert name in specs() or bare in specs() or name in known, (each.flag, flag)


@pytest.mark.parametrize("dialect", TABLES)
def test_no_spelling_stands_twice_for_one_script(dialect):
    table = TABLES[dialect].TABLE
    for script in {script for each in table for script in each.scripts} | {"train"}:
        names = [name for each in table.declared(script) for name in each.names]
        assert len(names) == len(set(names))


def test_abbreviations_are_unique_or_an_error():
    rows = [row("--epochs --epoch", to="epochs"), row("--epochs-per-ckpt", nothing="x"), row("--seed", to="seed")]
    table = Table({"": rows})
    assert table.find_flag("--epoch", "train")[0] is rows[0]
    assert table.find_flag("--se", "train")[0] is rows[2]
    assert table.find_flag("--nothing", "train") is None
    with pytest.raises(UserError, match="could mean --epochs, --epochs-per-ckpt"):
        Table({"": [row("--epochs", to="epochs"), rows[1]]}).find_flag("--ep", "train")


def test_two_spellings_of_one_row_are_not_ambiguous():
    rows = [row("--enable-recomputation --enable-recompute", "flag", ours="x")]
    assert Table({"": rows}).find_flag("--enable-rec", "train")[0] is rows[0]


VERSIONS = {
    "pytorch": ("pytorch 2020", "pytorch 3.4"),
    "tensorflow1": ("tensorflow1 2.0", "tensorflow1 2.1"),
    "tensorflow2": ("tensorflow2 3.2",),
    "popart": ("popart 2020",),
}


@pytest.mark.parametrize("dialect", TABLES)
def test_each_version_of_a_program_declares_its_own_spellings(dialect):
    table = TABLES[dialect].TABLE
    for version, absent in zip(VERSIONS[dialect], table.absent, strict=True):
        assert table.spellings() - absent - {"--help"} == set(DECLARED[version]) - {"--help"}, version


@pytest.mark.parametrize(
    ("dialect", "script", "word", "option"),
    [
        ("pytorch", "train", "--check", "--checkpoint-path"),
        ("pytorch", "validate", "--check", "--checkpoint-path"),
        ("pytorch", "train", "--no", None),
        ("pytorch", "train", "--norm", "--normlayer"),
        ("pytorch", "train", "--disable", "--disable-metrics"),
        ("pytorch", "train", "--enable-p", "--enable-pipeline-recompute"),
        ("tensorflow1", "train", "--max-c", "--max-cross-replica-buffer-size"),
        ("tensorflow1", "train", "--select", "--select-ipu"),
        ("tensorflow1", "train", "--mom", "--momentum"),
        ("tensorflow1", "train", "--sharding-e", "--sharding-exclude-filter"),
        ("tensorflow2", "train", "--gradient-accumulation", "--gradient-accumulation-count"),
        ("tensorflow2", "train", "--model", "--model-name"),
        ("tensorflow2", "train", "--lr-s", None),
        ("popart", "resnet_main", "--num-w", "--num-workers"),
    ],
)
def test_an_abbreviation_is_judged_by_the_options_of_its_document(dialect, script, word, option):
    table = TABLES[dialect].TABLE
    if option is None:
        with pytest.raises(UserError, match="could mean"):
            table.find_flag(word, script, "resnet")
    else:
        assert table.find_flag(word, script, "resnet")[0].flag == option


def test_a_row_needs_one_outcome():
    with pytest.raises(AssertionError):
        row("--x")
    assert isinstance(row("--x", nothing="why"), Row)
    assert len(list(Table({"": [row("--x", nothing="why")]}))) == 1
