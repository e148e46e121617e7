"""Class folders: the names of splits, runs beside the classes, links."""

from pathlib import Path

import pytest
from tests.data.photos import encoded, make_folder, picture

from conveyor.data.catalogue import info
from conveyor.data.formats import folders
from conveyor.errors import UserError
from conveyor.options.data import DataOptions


def plain(root: Path, classes: tuple[str, ...] = ("ape", "bee"), images: int = 4) -> Path:
    content = encoded(picture(16, 16))
    for name in classes:
        (root / name).mkdir(parents=True)
        for number in range(images):
            (root / name / f"{number}.jpg").write_bytes(content)
    return root


@pytest.mark.parametrize(("train", "validation"), [("Train", "Val"), ("TRAIN", "TEST"), ("train", "Validation")])
def test_splits_are_named_in_any_case(tmp_path: Path, train: str, validation: str) -> None:
    make_folder(tmp_path, 3, 2)
    (tmp_path / "train").rename(tmp_path / train)
    (tmp_path / "validation").rename(tmp_path / validation)
    assert not folders.is_plain(tmp_path)
    listing = folders.scan(tmp_path, 0.1)
    assert (listing.classes, listing.count("train"), listing.count("validation")) == (("ape", "bee"), 6, 4)


@pytest.mark.parametrize("run", ["runs/one", "run", "."])
def test_a_run_folder_is_no_class(tmp_path: Path, run: str) -> None:
    root = plain(tmp_path / "photos")
    before = folders.scan(root, 0.25)
    (root / run / "mistakes").mkdir(parents=True)
    (root / run / "tensorboard").mkdir()
    (root / run / "mistakes" / "0001.png").write_bytes(b"")
    for name in (".lock", "options.yml"):
        (root / run / name).write_bytes(b"")
    assert folders.scan(root, 0.25) == before


def test_an_empty_class_is_still_refused(tmp_path: Path) -> None:
    (plain(tmp_path) / "cat").mkdir()
    with pytest.raises(UserError, match=r"class folders without images \(cat\)"):
        folders.scan(tmp_path, 0.25)


@pytest.mark.parametrize("target", ["cat", "absent"])
def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path, target: str) -> None:
    (plain(tmp_path) / "cat").symlink_to(target)
    with pytest.raises(UserError, match="cat is a link that leads nowhere: mend it, or remove it"):
        folders.scan(tmp_path, 0.25)


def test_a_file_and_a_flat_folder_are_called_so(tmp_path: Path) -> None:
    (tmp_path / "small.zip").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"small\.zip is a file: unpack it"):
        info(DataOptions(data_dir=str(tmp_path / "small.zip")))
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "0.jpg").write_bytes(encoded(picture(16, 16)))
    with pytest.raises(UserError, match="has images, but no class folders"):
        folders.scan(tmp_path / "flat")
