"""The audit finds what was put there, and nothing else; the list it writes is taken by training."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.photos import encoded, make_folder, picture

from conveyor import cli
from conveyor.data.audit import NEAR, difference_hash, doubtful, near_pairs
from conveyor.data.formats import divide
from conveyor.errors import UserError
from conveyor.options.data import DataOptions


def test_near_pairs_are_the_first_of_all_pairs_in_each_split() -> None:
    generator = np.random.default_rng(0)
    hashes = [int(one) for one in generator.integers(0, 2**63, 60, dtype=np.uint64)]
    for number in range(30):
        flips = generator.choice(64, generator.integers(0, 7), replace=False)
        hashes.append(hashes[number] ^ int(sum(1 << int(bit) for bit in flips)))
    every = {(i, j) for i in range(90) for j in range(i + 1, 90) if (hashes[i] ^ hashes[j]).bit_count() <= NEAR}
    assert near_pairs(hashes, [str(number) for number in range(90)]) == every
    assert len(every) > 10
    hashes, splits = hashes + hashes[60:75] * 3, ["train"] * 80 + ["validation"] * 55
    expected = {
        (i, min(later))
        for i in range(len(hashes))
        for split in ("train", "validation")
        if (later := [j for j in range(i + 1, len(hashes)) if (hashes[i] ^ hashes[j]).bit_count() <= NEAR and splits[j] == split])
    }  # fmt: skip
    assert near_pairs(hashes, splits) == expected
    assert len(expected) > 60


def test_many_alike_have_few_pairs() -> None:
    """The frames of a film: all are near all others, and each is told once."""
    hashes = [0xABCDEF0123456789 ^ (1 << number % 64) for number in range(3000)]
    found = near_pairs(hashes, ["train"] * 3000)
    assert found == {(number, number + 1) for number in range(2999)}


def test_a_smaller_copy_has_nearly_the_same_hash() -> None:
    image = picture(200, 260, seed=5)
    smaller = np.asarray(Image.fromarray(image).resize((130, 100), Image.Resampling.BICUBIC))
    assert (difference_hash(image) ^ difference_hash(smaller)).bit_count() <= NEAR
    assert (difference_hash(image) ^ difference_hash(picture(200, 260, seed=6))).bit_count() > 12


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    make_folder(root, train=6, validation=3)
    shutil.copy(root / "train/ape/1.JPEG", root / "train/bee/copy.JPEG")
    shutil.copy(root / "validation/ape/2.JPEG", root / "train/ape/leak.JPEG")
    image = Image.open(root / "validation/bee/0.JPEG")
    image.resize((image.width * 2, image.height * 2), Image.Resampling.BICUBIC).save(root / "train/bee/near.JPEG")
    (root / "train/ape/broken.JPEG").write_bytes((root / "train/ape/0.JPEG").read_bytes()[:300])
    (root / "train/ape/flat.JPEG").write_bytes(encoded(np.full((64, 64, 3), 90, np.uint8)))
    (root / "train/bee/tiny.JPEG").write_bytes(encoded(picture(12, 14, 77)))
    return root


@pytest.mark.parametrize("row", ["a,b,c,much,0", "a,b,c,0.99,no"])
def test_a_damaged_file_of_answers_is_one_sentence(tmp_path: Path, row: str) -> None:
    file = tmp_path / "answers.csv"
    file.write_text(f"path,label,answer,confidence,right\n{row}\n")
    with pytest.raises(UserError, match=r"answers\.csv is damaged"):
        doubtful([file], {"a": "train"})


def test_it_finds_what_was_put_there(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = tmp_path / "answers.csv"
    answers.write_text(
        "path,label,answer,confidence,right\nvalidation/ape/0.JPEG,ape,bee,0.97,0\nvalidation/ape/1.JPEG,ape,bee,0.6,0\n"
    )
    out = tmp_path / "audit"
    command = ["data", "audit", str(photos), "--out", str(out), "--answers", str(answers)]
    assert cli.main(command) == 1
    with (out / "audit.csv").open() as file:
        found = {(row["kind"], row["path"]): row for row in csv.DictReader(file)}
    assert set(found) == {
        ("broken", "train/ape/broken.JPEG"),
        ("odd", "train/ape/flat.JPEG"),
        ("odd", "train/bee/tiny.JPEG"),
        ("duplicate", "train/bee/copy.JPEG"),
        ("leak", "train/ape/leak.JPEG"),
        ("leak", "train/bee/near.JPEG"),
        ("doubtful label", "validation/ape/0.JPEG"),
    }
    assert "labels differ" in found["duplicate", "train/bee/copy.JPEG"]["detail"]
    excluded = (out / "exclude.txt").read_text().split()
    assert sorted(excluded) == [
        "train/ape/broken.JPEG", "train/ape/leak.JPEG", "train/bee/copy.JPEG", "train/bee/near.JPEG",
    ]  # fmt: skip
    assert "--exclude-images" in capsys.readouterr().out
    page = (out / "audit.html").read_text()
    assert page.count("data:image/jpeg") == 6  # the broken one cannot be shown
    rest = divide.listing(photos, DataOptions(exclude_images=str(out / "exclude.txt")), 1.0)
    assert rest.count("train") == 18 - 4
    again = ["data", "audit", "--data-dir", str(photos), "--out", str(tmp_path / "b"), "--exclude-images"]
    assert cli.main([*again, str(out / "exclude.txt")]) == 0


def test_copies_in_an_array_are_found(tmp_path: Path) -> None:
    """The embedded digits have no exact copies; their names are those that --exclude-images takes."""
    cli.main(["data", "audit", "--out", str(tmp_path), "--max-train-images", "60", "--max-validation-images", "20"])
    with (tmp_path / "audit.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(row["path"].startswith(("train/", "validation/")) for row in rows)
    assert not any(row["kind"] in ("duplicate", "broken", "odd") for row in rows)
