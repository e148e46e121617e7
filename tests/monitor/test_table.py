"""Tables of text: columns, titles of several lines, and the last column folded on a narrow terminal."""

import pytest

from conveyor.monitor.table import format_table

TITLES, ROWS = (
    ["name", "micro-\nbatch", "about"],
    [["one", 8, "short"], ["two", 16, "a text of more words than there is room for"]],
)


def test_numbers_to_the_right_names_to_the_left() -> None:
    assert format_table(["", "size", "kind"], [["a", "8", "x"], ["long", "16 %", "y"]]).splitlines() == [
        "      size  kind", "----  ----  ----", "a        8  x", "long  16 %  y",
    ]  # fmt: skip


def test_a_row_is_one_line_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)
    assert format_table(TITLES, ROWS, rule=False, fold=True).splitlines() == [
        "      micro-", "name   batch  about", "one        8  short", "two       16  a text of more words than there is room for",
    ]  # fmt: skip


def test_the_last_column_is_folded_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert format_table(TITLES, ROWS, rule=False, fold=True).splitlines()[2:] == [
        "one        8  short", "two       16  a text of more words than", "              there is room for",
    ]  # fmt: skip


def test_with_little_room_it_goes_below_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert format_table(TITLES, ROWS, rule=False, fold=True).splitlines()[2:] == [
        "one        8  short", "two       16", "      a text of more words", "      than there is room for",
    ]  # fmt: skip


def test_no_rows() -> None:
    assert format_table(["a", "bc"], []) == "a  bc\n-  --"
