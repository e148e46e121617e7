"""Class folders without train/ and validation/ are divided."""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.data.catalogue import info
from conveyor.data.formats import folders
from conveyor.data.formats.listing import Listing
from conveyor.options import Options
from conveyor.spec import resolve


def photographs(root: Path, counts: dict[str, int]) -> Path:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            (root / name / f"{number:03}.jpg").touch()
    return root


def test_a_tenth_of_each_class_is_held_out(tmp_path: Path) -> None:
    """Evenly spread, every image on one side, a class of one only to train on."""
    listing = folders.scan(photographs(tmp_path, {"cat": 40, "dog": 20, "emu": 3, "yak": 1}), 0.1)
    held = Counter(number for _, number in listing.files["validation"])
    assert held == {0: 4, 1: 2, 2: 1}
    assert [path for path, number in listing.files["validation"] if number == 0] == [
        "cat/005.jpg", "cat/015.jpg", "cat/025.jpg", "cat/035.jpg",
    ]  # fmt: skip
    together = sorted(path for split in listing.files.values() for path, _ in split)
    assert together == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.jpg"))


@given(st.integers(1, 60), st.floats(0.01, 0.99))
def test_both_sides_have_images(count: int, share: float) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        listing = folders.scan(photographs(Path(folder), {"one": count}), share)
        assert listing.count("train") + listing.count("validation") == count
        assert listing.count("train") >= 1
        assert (listing.count("validation") >= 1) == (count > 1)


def test_a_run_on_class_folders_says_what_it_does(tmp_path: Path) -> None:
    """No other option is needed, and the note names the one that changes it."""
    root = photographs(tmp_path / "photos", {"cat": 30, "dog": 30})
    spec = resolve(Options().replace(data_dir=str(root), micro_batch_size=8))
    assert (spec.data.train_images, spec.data.validation_images, spec.subject.num_classes) == (54, 6, 2)
    assert any("6 of its images are held out (--hold-out)" in note for note in spec.notes)


@pytest.mark.parametrize(("share", "expected"), [(0.0, (60, 0)), (1.0, (0, 60)), (0.5, (30, 30))])
def test_the_share_can_be_chosen(tmp_path: Path, share: float, expected: tuple[int, int]) -> None:
    root = photographs(tmp_path / "photos", {"cat": 30, "dog": 30})
    found = info(Options().replace(data_dir=str(root), hold_out=share).data)
    assert (found.train_images, found.validation_images) == expected


def test_folders_with_splits_are_taken_as_they_are(tmp_path: Path) -> None:
    photographs(tmp_path / "train", {"cat": 5})
    photographs(tmp_path / "val", {"cat": 2})
    listing = folders.scan(tmp_path, 0.5)
    assert (listing.count("train"), listing.count("validation")) == (5, 2)


def test_a_link_that_leads_back_is_not_followed(tmp_path: Path) -> None:
    root = photographs(tmp_path / "photos", {"cat": 3, "dog": 2})
    (root / "cat" / "again").symlink_to(root / "cat")
    (root / "dog" / "up").symlink_to("..")
    elsewhere = photographs(tmp_path / "elsewhere", {"emu": 4})
    (root / "emu").symlink_to(elsewhere / "emu")
    assert folders.scan(root).count("validation") == 9


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_the_held_out_images_of_a_class_do_not_depend_on_the_others(share: float) -> None:
    """One pass over the labels, however many classes: what it holds out of each is what the class alone would give."""
    labels = np.random.default_rng(1).integers(0, 300, 2000)
    whole = Listing(
        Path(), tuple(map(str, range(300))), {"train": tuple((str(i), int(c)) for i, c in enumerate(labels))}
    )
    held = set(whole.divided(share).files["validation"])
    for label in set(labels.tolist()):
        own = tuple(pair for pair in whole.files["train"] if pair[1] == label)
        alone = dataclasses.replace(whole, files={"train": own}).divided(share).files["validation"]
        assert set(alone) == {pair for pair in held if pair[1] == label}
    assert bool(held) == (share > 0)
