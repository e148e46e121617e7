"""Cross-validation: folds are disjoint, alike in every class, keep groups whole; a run for each and a summary."""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.runs import small_options

from conveyor import cli
from conveyor.data.catalogue import info
from conveyor.data.formats.listing import Listing, fold_numbers
from conveyor.data.open import open_dataset
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.options.data import DataOptions
from conveyor.run import folds


@given(st.lists(st.integers(0, 3), min_size=12, max_size=80), st.integers(2, 5))
def test_every_class_is_spread_evenly(labels: list[int], count: int) -> None:
    numbers = fold_numbers(labels, (), count)
    sizes = Counter(numbers)
    assert max(sizes.values()) - min(sizes[fold] for fold in range(count)) <= 1
    for label in set(labels):
        inside = Counter(number for number, one in zip(numbers, labels, strict=True) if one == label)
        assert max(inside.values()) - min(inside[fold] for fold in range(count)) <= 1


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcdefgh")), min_size=10, max_size=80), st.integers(2, 4))
def test_groups_stay_whole(rows: list[tuple[int, str]], count: int) -> None:
    numbers = fold_numbers([label for label, _ in rows], [group for _, group in rows], count)
    homes: dict[str, set[int]] = {}
    for (_, group), number in zip(rows, numbers, strict=True):
        homes.setdefault(group, set()).add(number)
    assert all(len(home) == 1 for home in homes.values())


def test_groups_of_equal_size_balance_the_classes() -> None:
    """Forty groups of five images, each of one class: every fold gets ten images of each of the four classes."""
    groups = [str(number // 5) for number in range(200)]
    labels = [number // 5 % 4 for number in range(200)]
    numbers = fold_numbers(labels, groups, 5)
    assert set(Counter(zip(numbers, labels, strict=True)).values()) == {10}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), min_size=10, max_size=150), st.integers(2, 5))
def test_the_folds_of_groups_are_those_of_the_whole_table(rows: list[tuple[int, int]], count: int) -> None:
    """Groups x classes shares in one table, as the rule is written; the program makes a row at a time."""
    labels, groups = [label for label, _ in rows], [f"g{group}" for _, group in rows]
    named, names = sorted(set(labels)), sorted(set(groups))
    table = np.array([[sum(r == (c, int(g[1:])) for r in rows) for c in named] for g in names], np.float64)
    shares, held, homes = table / table.sum(axis=0), np.zeros((count, len(named))), {}
    for one in np.argsort(-table.sum(axis=1), kind="stable"):
        homes[names[one]] = int(np.argmin((shares[one] * (2 * held + shares[one])).sum(axis=1)))
        held[homes[names[one]]] += shares[one]
    assert fold_numbers(labels, groups, count) == [homes[group] for group in groups]


def test_groups_are_read_from_names_and_held_out_whole(tmp_path: Path) -> None:
    files = tuple((f"cat/p{number % 10}_{number}.jpg", 0) for number in range(100))
    found = Listing(tmp_path, ("cat",), {"train": files}).grouped(r"/(p\d+)_").divided(0.1)
    held = {name.partition("_")[0] for name, _ in found.files["validation"]}
    assert len(found.files["validation"]) == 10
    assert len(held) == 1


def test_a_pattern_that_finds_no_group_is_refused(tmp_path: Path) -> None:
    """Images of one patient stood on both sides, and nothing said so."""
    for number in range(6):
        (tmp_path / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / "ab"[number % 2] / f"p{number // 2}_{number}.jpg").touch()
    options = DataOptions(data_dir=str(tmp_path / "photos"), hold_out=0.3)
    with pytest.raises(UserError, match=r"finds no group in any name: they are such as 'a/p0_0.jpg'"):
        info(dataclasses.replace(options, group_by="patient-([0-9]+)"))
    assert info(dataclasses.replace(options, group_by="p([0-9]+)_")).validation_images == 2


def test_a_group_that_took_no_part_in_a_match_is_none() -> None:
    files = (("a1.jpg", 0), ("b1.jpg", 0), ("b2.jpg", 0))
    assert Listing(Path(), ("x",), {"train": files}).grouped("a([0-9])|b").groups["train"] == ("1", "b1.jpg", "b2.jpg")


def test_folds_of_a_set_in_memory_are_a_partition() -> None:
    seen = []
    for fold in range(4):
        options = Options().replace(folds=4, fold=fold)
        counts = info(options.data)
        parts = {split: open_dataset(options, split) for split in ("train", "validation")}
        assert [len(part) for part in parts.values()] == [counts.train_images, counts.validation_images]
        names = {split: {part.key(i) for i in range(len(part))} for split, part in parts.items()}  # type: ignore[attr-defined]
        assert not names["train"] & names["validation"]
        seen += sorted(names["validation"])
    assert len(seen) == len(set(seen)) == 1437
    whole = open_dataset(Options(), "train")
    part = open_dataset(Options().replace(folds=4, fold=3), "validation")
    number = int(part.key(7).removeprefix("train/"))  # type: ignore[attr-defined]
    assert np.array_equal(part.read(np.array([7]), 0).images, whole.read(np.array([number]), 0).images)


@pytest.mark.parametrize("given_options", [{"fold": 1}, {"folds": 3, "fold": 3}])
def test_a_fold_that_is_none_is_refused(given_options: dict[str, int]) -> None:
    with pytest.raises(UserError, match="--fold"):
        info(DataOptions(**given_options))


def test_a_run_for_each_fold_and_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = small_options(tmp_path / "cv", updates=4, updates_per_epoch=2).changed()
    (tmp_path / "options.yml").write_text(json.dumps({**changed, "folds": 3}))
    command = ["train", "--config", str(tmp_path / "options.yml")]
    assert cli.main(command) == 0
    found = json.loads((tmp_path / "cv" / "folds.json").read_text())
    each = [folds.last_validation(tmp_path / "cv" / f"fold-{fold}")["accuracy"] for fold in range(3)]
    assert found["accuracy"]["folds"] == each
    assert found["accuracy"]["mean"] == pytest.approx(sum(each) / 3)
    assert found["accuracy"]["deviation"] == pytest.approx(float(np.std(each, ddof=1)))
    assert "deviation" in capsys.readouterr().out
    weights = (tmp_path / "cv" / "fold-1" / "checkpoints" / "4" / "model.safetensors").read_bytes()
    assert cli.main([*command, "--fold", "1", "--run-dir", str(tmp_path / "one")]) == 0
    assert (tmp_path / "one" / "checkpoints" / "4" / "model.safetensors").read_bytes() == weights
    assert cli.main([*command, "--resume", "auto"]) == 0  # nothing is left to train: the summary again
    assert "deviation" in capsys.readouterr().out
    longer = [*command, "--resume", "auto", "--updates", "6"]
    assert cli.main(longer) == 0  # it printed the summary of the shorter runs
    assert all((tmp_path / "cv" / f"fold-{fold}" / "checkpoints" / "6").is_dir() for fold in range(3))
    assert cli.main([*longer, "--seed", "5"]) == 2
    assert "--seed 5 would change what the run has already computed" in " ".join(capsys.readouterr().err.split())
