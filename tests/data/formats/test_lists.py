"""Lists of files: the same run as from class folders; what is wrong with a list is said."""

import csv
from pathlib import Path
from typing import Any

import pytest
from tests.data.photos import make_folder
from tests.exact import differences
from tests.run.runs import train

from conveyor.data.catalogue import info
from conveyor.data.formats import divide, lists
from conveyor.data.open import open_dataset
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.options.data import DataOptions

SMALL: dict[str, Any] = {"image_size": 16, "micro_batch_size": 2, "accumulation": 2, "updates_per_epoch": None}


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def rows_of(folder: Path) -> list[dict[str, object]]:
    found = []
    for split in ("train", "validation"):
        for path in sorted((folder / split).rglob("*.JPEG")):
            found.append({"path": str(path.relative_to(folder)), "label": path.parent.name, "split": split})
    return found


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    make_folder(tmp_path / "photos", train=8, validation=4)
    return tmp_path / "photos"


@pytest.mark.parametrize("form", ["csv", "parquet", "two files"])
def test_a_list_trains_like_its_folder(photos: Path, tmp_path: Path, form: str) -> None:
    rows, where = rows_of(photos), photos
    if form == "two files":
        for split in ("train", "validation"):
            write(photos / f"{split}.csv", [row for row in rows if row["split"] == split])
    elif form == "csv":
        where = write(photos / "all.csv", rows)
    else:
        pyarrow = pytest.importorskip("pyarrow", reason="parquet is an extra")
        parquet = pytest.importorskip("pyarrow.parquet")
        where = photos / "all.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows), where)
    listed, folder = tmp_path / "listed", tmp_path / "folder"
    train(listed, data_dir=str(where), **SMALL)
    for path in photos.glob("*.csv"):
        path.unlink()
    train(folder, data_dir=str(photos), **SMALL)
    assert differences(listed, folder) == []


def test_classes_groups_and_several_labels(tmp_path: Path, photos: Path) -> None:
    names = [str(path) for path in sorted((photos / "train").rglob("*.JPEG"))][:4]
    path = write(
        tmp_path / "list.csv",
        [
            {"path": name, "labels": labels, "group": group}
            for name, labels, group in zip(names, ("dog;cat", "cat", "", "emu; dog"), "aabb", strict=True)
        ],
    )
    found = lists.read(lists.find(path))
    assert found.classes == ("cat", "dog", "emu")
    assert found.label_sets["train"] == ((0, 1), (0,), (), (1, 2))
    assert found.files["train"] == tuple(zip(names, (0, 0, -1, 1), strict=True))
    assert found.groups["train"] == ("a", "a", "b", "b")
    with pytest.raises(UserError, match="several classes or none"):
        open_dataset(Options().replace(data_dir=str(path), hold_out=0.0), "train")


def test_numbers_as_classes_are_ordered_by_value(tmp_path: Path, photos: Path) -> None:
    names = map(str, (photos / "train").rglob("*.JPEG"))
    path = write(tmp_path / "list.csv", [{"path": next(names), "label": label} for label in (10, 9, 2)])
    assert lists.read(lists.find(path)).classes == ("2", "9", "10")


def test_a_list_without_splits_is_divided(photos: Path) -> None:
    rows = [{key: row[key] for key in ("path", "label")} for row in rows_of(photos)]
    path = write(photos / "list.csv", rows)
    found = info(DataOptions(data_dir=str(path), hold_out=0.25))
    assert (found.train_images, found.validation_images, found.class_names) == (18, 6, ("ape", "bee"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("path,colour\na.jpg,red\n", "needs a column path and a column label"),
        ("path,label\n", "a line for each image"),
        ("path,label\na.jpg\n", "line 2"),
        ("path,label\nlist.csv,\n", "has no label for list.csv"),
        ("path,label\nabsent.jpg,cat\n", "which is not there"),
        ("path,label,split\nlist.csv,cat,maybe\n", "column split"),
        ("path,label,split\nlist.csv,cat,train\nlist.csv,dog,val\n", "validation images only"),
        ("path,label,split\nlist.csv,cat,val\n", "no images for training"),
        ("path;label\nlist.csv;cat\n", "separate the columns by commas"),
        ("path,label\nlist.csv,cat\nlist.csv,dog\n", "calls list.csv cat and dog: give it one line"),
        ("path,label\nlist.csv,cat\n./list.csv,cat\n", "copies of training images could be held out"),
        ("path,label,split\nlist.csv,cat,train\nlist.csv,cat,val\n", "list.csv for training and for validation"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "list.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=said):
        lists.read(lists.find(path))


def test_labels_of_any_type_in_parquet(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "a.jpg").touch()
    for value, expected in ((3, ("3",)), ([7, 3], ("3", "7")), ("x;y", ("x", "y"))):
        parquet.write_table(pyarrow.table({"path": ["a.jpg"], "labels": [value]}), tmp_path / "train.parquet")
        assert lists.read(lists.find(tmp_path)).classes == expected
    parquet.write_table(pyarrow.table({"path": ["a.jpg"], "label": [None]}), tmp_path / "train.parquet")
    with pytest.raises(UserError, match=r"has no label for a\.jpg"):
        lists.read(lists.find(tmp_path))


def test_an_image_twice_in_training_is_a_weight(photos: Path) -> None:
    rows = rows_of(photos)
    path = write(photos / "list.csv", [rows[0], *rows])
    assert lists.read(lists.find(path)).count("train") == 17


def test_excluded_images_are_left_out_on_their_own_side(photos: Path, tmp_path: Path) -> None:
    whole = divide.listing(photos, DataOptions(), 1.0)
    out = tmp_path / "out.txt"
    out.write_text("train/ape/0.JPEG\nvalidation/bee/1.JPEG\n")
    rest = divide.listing(photos, DataOptions(exclude_images=str(out)), 1.0)
    for split, gone in (("train", "train/ape/0.JPEG"), ("validation", "validation/bee/1.JPEG")):
        assert [pair for pair in whole.files[split] if pair[0] != gone] == list(rest.files[split])
    out.write_text("elsewhere.jpg\n")
    with pytest.raises(UserError, match="names no image of this data set"):
        divide.listing(photos, DataOptions(exclude_images=str(out)), 1.0)
