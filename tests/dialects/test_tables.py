"""Every option that some version of the programs declares stands in a table, with one outcome."""

import json
from pathlib import Path

import pytest

from conveyor.dialects import popart_table, pytorch_table, tensorflow1_table, tensorflow2_table
from conveyor.dialects.table import Row, Table, find_flag, row
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
def test_groups_hold_exactly_the_table(dialect):
    module = TABLES[dialect]
    grouped = [each for rows in module.GROUPS.values() for each in rows]
    assert {id(each) for each in grouped} == {id(each) for each in module.TABLE}


@pytest.mark.parametrize("dialect", TABLES)
def test_no_spelling_stands_twice_for_one_script(dialect):
    table = TABLES[dialect].TABLE
    for script in {script for each in table for script in each.scripts} | {"train"}:
        names = [name for each in table.declared(script) for name in each.names]
        assert len(names) == len(set(names))


def test_abbreviations_are_unique_or_an_error():
    rows = [row("--epochs --epoch", to="epochs"), row("--epochs-per-ckpt", nothing="x"), row("--seed", to="seed")]
    assert find_flag("--epoch", rows)[0] is rows[0]
    assert find_flag("--se", rows)[0] is rows[2]
    assert find_flag("--nothing", rows) is None
    with pytest.raises(UserError, match="could mean --epochs, --epochs-per-ckpt"):
        find_flag("--ep", [row("--epochs", to="epochs"), rows[1]])


def test_two_spellings_of_one_row_are_not_ambiguous():
    rows = [row("--enable-recomputation --enable-recompute", "flag", ours="x")]
    assert find_flag("--enable-rec", rows)[0] is rows[0]


def test_a_row_needs_one_outcome():
    with pytest.raises(AssertionError):
        row("--x")
    assert isinstance(row("--x", nothing="why"), Row)
    assert len(list(Table([row("--x", nothing="why")]))) == 1
