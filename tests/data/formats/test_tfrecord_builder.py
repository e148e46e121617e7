"""Building TFRecord files from class folders, and verifying data of every kind."""

import json
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from tests.data.formats.test_tfrecord import EXAMPLE, framed
from tests.data.photos import encoded, make_folder, picture
from tests.data.small import make_cifar10, make_mnist, write_idx

from conveyor.data import catalogue, open_dataset
from conveyor.data.formats import sources, tfrecord_dataset
from conveyor.data.formats.boxes import read_boxes
from conveyor.data.formats.tfrecord import read_record, scan
from conveyor.data.formats.tfrecord_builder import BuildOptions, build_tfrecords, read_class_texts
from conveyor.data.formats.tfrecord_example import decode_example
from conveyor.data.verify import check_image, verify
from conveyor.errors import UserError
from conveyor.options import Options


@pytest.fixture
def images(tmp_path: Path) -> Path:
    make_folder(tmp_path / "images")
    return tmp_path / "images"


SMALL = BuildOptions(train_shards=4, validation_shards=2, threads=3)


def test_the_files_hold_every_image_once_in_the_standard_form(images: Path, tmp_path: Path) -> None:
    assert build_tfrecords(images, tmp_path / "records", SMALL) == {"train": 12, "validation": 6}
    names = sorted(path.name for path in (tmp_path / "records").iterdir())
    assert names[:3] == ["dataset.json", "labels.txt", "train-00000-of-00004"]
    assert len(names) == 8
    seen = []
    for path in tfrecord_dataset.record_files(tmp_path / "records", "train"):
        content = path.read_bytes()
        for offset, length in scan(path).tolist():
            data = read_record(path, offset, length)
            assert content[offset : offset + length + 16] == framed(data)
            example = EXAMPLE()
            example.ParseFromString(data)
            feature = example.features.feature
            folder = feature["image/class/synset"].bytes_list.value[0].decode()
            name = feature["image/filename"].bytes_list.value[0].decode()
            original = (images / "train" / folder / name).read_bytes()
            assert feature["image/encoded"].bytes_list.value[0] == original
            height, width = simplejpeg.decode_jpeg_header(original)[:2]
            assert feature["image/height"].int64_list.value[0] == height
            assert feature["image/width"].int64_list.value[0] == width
            assert feature["image/class/label"].int64_list.value[0] == 1 + ["ape", "bee"].index(folder)
            assert feature["image/colorspace"].bytes_list.value[0] == b"RGB"
            assert feature["image/channels"].int64_list.value[0] == 3
            assert feature["image/format"].bytes_list.value[0] == b"JPEG"
            seen.append((folder, name))
    assert len(set(seen)) == len(seen) == 12
    assert seen != sorted(seen)


def test_what_is_built_trains_like_the_folders(images: Path, tmp_path: Path) -> None:
    build_tfrecords(images, tmp_path / "records", SMALL)
    options = Options().replace(data="folder", data_dir=str(tmp_path / "records"))
    info, original = (
        catalogue.info(Options().replace(data="folder", data_dir=str(d)).data) for d in (tmp_path / "records", images)
    )
    assert (info.train_images, info.validation_images, info.class_names) == (12, 6, original.class_names)
    records = open_dataset(options, "validation", 24, 3).read(np.arange(6), 0)
    folders = open_dataset(options.replace(data_dir=str(images)), "validation", 24, 3).read(np.arange(6), 0)
    assert records.labels.tolist() == folders.labels.tolist()
    np.testing.assert_array_equal(records.images.numpy(), folders.images.numpy())


def test_building_goes_on_where_it_stopped(images: Path, tmp_path: Path) -> None:
    target = tmp_path / "records"
    build_tfrecords(images, target, SMALL)
    reference = {path.name: path.read_bytes() for path in target.iterdir()}
    kept = (target / "train-00001-of-00004").stat().st_mtime_ns
    (target / "train-00000-of-00004").unlink()
    (target / "train-00002-of-00004").write_bytes(reference["train-00002-of-00004"][:-5])
    (target / ".train-00003-of-00004.abc.tmp").write_bytes(b"left over")
    build_tfrecords(images, target, SMALL)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == reference
    assert (target / "train-00001-of-00004").stat().st_mtime_ns == kept


def test_other_formats_become_jpeg(images: Path, tmp_path: Path) -> None:
    image = picture(40, 50)
    (images / "train" / "ape" / "0.JPEG").write_bytes(encoded(image, "PNG"))
    (images / "train" / "ape" / "1.JPEG").write_bytes(encoded(image, mode="CMYK"))
    build_tfrecords(images, tmp_path / "records", BuildOptions(train_shards=1, validation_shards=1))
    path = tmp_path / "records" / "train-00000-of-00001"
    for offset, length in scan(path).tolist():
        features = decode_example(read_record(path, offset, length))
        data = features["image/encoded"][0]
        assert isinstance(data, bytes)
        assert simplejpeg.decode_jpeg_header(data)[2] != "CMYK"


def test_boxes_and_texts(images: Path, tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_text("0.JPEG,0.1,0.2,0.5,0.75\n0.JPEG,0,0,1,1\n")
    (tmp_path / "texts.txt").write_text("ape\tgreat ape\nbee honey bee\n")
    options = BuildOptions(
        1, 1, boxes=read_boxes(tmp_path / "boxes.csv"), class_texts=read_class_texts(tmp_path / "texts.txt")
    )
    build_tfrecords(images, tmp_path / "records", options)
    path = tmp_path / "records" / "validation-00000-of-00001"
    offset, length = scan(path)[0].tolist()
    features = decode_example(read_record(path, offset, length))
    assert features["image/class/text"] == [b"great ape"]
    assert features["image/object/bbox/xmin"] == pytest.approx([0.1, 0.0])
    assert features["image/object/bbox/ymax"] == pytest.approx([0.75, 1.0])
    assert features["image/object/bbox/label"] == [1, 1]
    (tmp_path / "boxes.csv").write_text("0.JPEG,0.1,0.2\n")
    with pytest.raises(UserError, match="line 1"):
        read_boxes(tmp_path / "boxes.csv")


def test_a_bad_image_stops_the_build_with_its_name(images: Path, tmp_path: Path) -> None:
    bad = images / "train" / "bee" / "3.JPEG"
    bad.write_bytes(bad.read_bytes()[:300])
    with pytest.raises(UserError, match="cannot decode") as error:
        build_tfrecords(images, tmp_path / "records", SMALL)
    assert str(bad) in str(error.value)


def test_verify_names_every_bad_file_of_a_folder(images: Path) -> None:
    assert verify(images).good
    good = (images / "train" / "ape" / "0.JPEG").read_bytes()
    (images / "train" / "ape" / "1.JPEG").write_bytes(good[:500])
    (images / "train" / "bee" / "2.JPEG").write_bytes(b"")
    damaged = bytearray(good)
    damaged[-200:-150] = b"\xff\xd9" * 25
    (images / "validation" / "ape" / "0.JPEG").write_bytes(damaged)
    (images / "validation" / "bee" / "1.JPEG").write_bytes(encoded(picture(20, 20), "PNG"))
    report = verify(images)
    assert len(report.problems) == 3
    for part in ("train/ape/1.JPEG", "train/bee/2.JPEG", "validation/ape/0.JPEG"):
        assert any(part in problem for problem in report.problems)
    assert verify(images, decode=False).good


def test_verify_checks_records(images: Path, tmp_path: Path) -> None:
    target = tmp_path / "records"
    build_tfrecords(images, target, SMALL)
    report = verify(target)
    assert report.good
    assert report.images == {"train": 12, "validation": 6}
    content = bytearray((target / "train-00001-of-00004").read_bytes())
    content[40] ^= 1
    (target / "train-00001-of-00004").write_bytes(content)
    (target / "validation-00000-of-00002").write_bytes(b"short")
    problems = verify(target, decode=False).problems
    assert any("train-00001-of-00004 is damaged at byte 0: the checksum of its data" in problem for problem in problems)
    assert any("validation-00000-of-00002 is damaged at byte 0" in problem for problem in problems)


def test_verify_checks_small_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cifar10(tmp_path / "cifar")
    problems = verify(tmp_path / "cifar").problems
    assert sum("MD5" in problem for problem in problems) == 6
    assert any("30 images for train instead of 50000" in problem for problem in problems)
    make_mnist(tmp_path / "fashion")
    assert verify(tmp_path / "fashion").name == "fashion-mnist"
    make_mnist(tmp_path / "numbers")
    known = dict.fromkeys(sources.SOURCES["mnist"].files, "")
    monkeypatch.setitem(sources.SOURCES, "mnist", sources.Source("mnist", (), (), "mnist", known))
    write_idx(tmp_path / "numbers" / "train-labels-idx1-ubyte", np.full(24, 12, np.uint8))
    (tmp_path / "numbers" / "t10k-images-idx3-ubyte").write_bytes(b"broken")
    problems = verify(tmp_path / "numbers").problems
    assert any("label 12" in problem for problem in problems)
    assert any("not an idx file" in problem for problem in problems)


def test_checking_an_image() -> None:
    assert check_image(encoded(picture())) is None
    assert check_image(encoded(picture(), progressive=True)) is None
    assert check_image(encoded(picture(), mode="CMYK")) is None
    assert check_image(encoded(picture(), "PNG")) is None
    assert check_image(b"\xff\xd8\xff") is not None
    assert check_image(encoded(picture())[:-2]) is not None


def test_a_summary_that_is_damaged_is_named(images: Path, tmp_path: Path) -> None:
    build_tfrecords(images, tmp_path / "records", SMALL)
    summary = tmp_path / "records" / "dataset.json"
    assert json.loads(summary.read_text())["classes"] == ["ape", "bee"]
    summary.write_text("{}")
    with pytest.raises(UserError, match=r"dataset\.json is damaged"):
        catalogue.info(Options().replace(data="folder", data_dir=str(tmp_path / "records")).data)
    summary.unlink()
    assert catalogue.info(Options().replace(data="folder", data_dir=str(tmp_path / "records")).data).train_images == 12


def test_class_folders_alone_are_refused(tmp_path: Path) -> None:
    """All of them became validation images, and the command ended well."""
    make_folder(tmp_path / "photos")
    with pytest.raises(UserError, match="which images are for training is not said"):
        build_tfrecords(tmp_path / "photos" / "train", tmp_path / "records", SMALL)
    assert not (tmp_path / "records").exists()
