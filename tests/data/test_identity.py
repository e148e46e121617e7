"""Which data a run was trained on: what counts as the same, and what is said when they are not."""

import gzip
from pathlib import Path

import pytest
from tests.data.photos import encoded, make_folder, picture

from conveyor.data import catalogue
from conveyor.data.formats import folders, idx
from conveyor.data.formats.tfrecord_builder import BuildOptions, build_tfrecords
from conveyor.data.identity import Identity, check_classes
from conveyor.data.verify import verify
from conveyor.errors import UserError
from conveyor.options.data import DataOptions


def identity(root: Path, **changed: object) -> Identity:
    options = DataOptions(data_dir=str(root), **changed)  # type: ignore[arg-type]
    return Identity.of(options, catalogue.info(options))


def test_a_copy_elsewhere_is_the_same_data(tmp_path: Path) -> None:
    for name in ("here", "there"):
        make_folder(tmp_path / name)
    here, there = identity(tmp_path / "here"), identity(tmp_path / "there")
    assert here == there
    assert here.class_names == ("ape", "bee")
    assert len(here.fingerprint) == 64
    there.check(here.to_json())


@pytest.mark.parametrize("change", ["added", "removed", "renamed", "moved"])
def test_other_files_are_other_data(tmp_path: Path, change: str) -> None:
    make_folder(tmp_path)
    before = identity(tmp_path).to_json()
    file = tmp_path / "train" / "ape" / "0.JPEG"
    if change == "added":
        file.with_name("9.JPEG").write_bytes(file.read_bytes())
    elif change == "removed":
        file.unlink()
    else:
        file.rename(file.with_name("00.JPEG") if change == "renamed" else tmp_path / "train" / "bee" / "00.JPEG")
    with pytest.raises(UserError, match=r"trained on folder with 12 images .* their files differ: .*--data-dir"):
        identity(tmp_path).check(before)


def test_records_are_known_by_names_and_sizes(tmp_path: Path) -> None:
    make_folder(tmp_path / "photos")
    for name, shards in (("a", 2), ("b", 2), ("c", 3)):
        build_tfrecords(tmp_path / "photos", tmp_path / name, BuildOptions(shards, 1, threads=1))
    found = {name: identity(tmp_path / name) for name in ("a", "b", "c")}
    assert found["a"] == found["b"]
    assert found["a"].fingerprint != found["c"].fingerprint
    with pytest.raises(UserError, match="their files differ"):
        found["c"].check(found["a"].to_json())


def test_made_up_and_unknown_data_are_never_refused(tmp_path: Path) -> None:
    options = DataOptions(data="imagenet", generated_data=True)
    made_up = Identity.of(options, catalogue.info(options))
    assert made_up.fingerprint == ""
    make_folder(tmp_path)
    known = identity(tmp_path)
    known.check(made_up.to_json())
    made_up.check(known.to_json())
    known.check({})  # a checkpoint of an earlier version


def test_both_lists_of_classes_are_shown() -> None:
    with pytest.raises(UserError, match=r"the classes ape, bee, cat, the data have ape, cat, zebra: .* number 1 on"):
        check_classes(["ape", "bee", "cat"], ("ape", "cat", "zebra"))
    with pytest.raises(UserError, match=r"ape, bee, the data have ape: .* number 1 on"):
        check_classes(["ape", "bee"], ["ape"])
    many = [f"c{number:03}" for number in range(1000)]
    other = [*many[:500], "new", *many[501:]]
    with pytest.raises(
        UserError, match=r"\.\.\., c494, .*c500, .*, \.\.\. \(1000 in all\), the data have .*new"
    ) as error:
        check_classes(many, other)
    assert len(str(error.value)) < 500
    check_classes(many, many)
    check_classes((), many)


def test_a_class_folder_without_images_is_no_class(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "train" / "aaa").mkdir()
    with pytest.raises(UserError, match=r"class folders without images \(aaa\): remove them"):
        folders.scan(tmp_path)
    assert any("no images of class aaa in train" in problem for problem in verify(tmp_path).problems)
    (tmp_path / "train" / "aaa").rmdir()
    (tmp_path / "validation" / "bee" / "0.JPEG").unlink()
    folders.scan(tmp_path)


def test_a_class_may_be_missing_in_validation(tmp_path: Path) -> None:
    make_folder(tmp_path)
    for file in (tmp_path / "validation" / "bee").iterdir():
        file.unlink()
    assert folders.scan(tmp_path).classes == ("ape", "bee")


@pytest.mark.parametrize("data", [None, "folder"])
def test_a_missing_folder_is_named(tmp_path: Path, data: str | None) -> None:
    options = DataOptions(data=data, data_dir=str(tmp_path / "absent"))
    with pytest.raises(UserError, match=r"the data folder .*absent does not exist"):
        catalogue.info(options)


def test_a_small_archive_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "train-labels-idx1-ubyte.gz"
    with gzip.open(file, "wb") as packed:
        for _ in range(9):
            packed.write(bytes(1 << 20))
    assert file.stat().st_size < 20_000
    monkeypatch.setattr(idx, "LARGEST", 1 << 23)
    with pytest.raises(UserError, match=r"more than 8388608 bytes of content"):
        idx.read_maybe_zipped(file)
    monkeypatch.setattr(idx, "LARGEST", 9 << 20)
    assert len(idx.read_maybe_zipped(file)) == 9 << 20


def test_a_copied_photograph_keeps_its_sides_in_records(tmp_path: Path) -> None:
    """Readers that know nothing of EXIF see the stored picture; ours is upright."""
    from PIL import Image

    from conveyor.data.formats.tfrecord_builder import features_of
    from conveyor.data.photo.decode import Encoded

    exif = Image.Exif()
    exif[0x0112] = 6
    for kind, sides in (("jpg", (40, 60)), ("png", (60, 40))):
        path = tmp_path / f"photo.{kind}"
        path.write_bytes(encoded(picture(40, 60), "JPEG" if kind == "jpg" else "PNG", exif=exif))
        features = features_of(path, 0, "ape", BuildOptions())
        assert (features["image/height"], features["image/width"]) == ([sides[0]], [sides[1]])
        kept = Encoded(features["image/encoded"][0])  # type: ignore[arg-type]
        assert (kept.height, kept.width) == (60, 40)
