"""Copies that TensorFlow Datasets has prepared: found, counted, read, verified."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.data.formats.test_tfrecord import framed
from tests.data.photos import encoded, picture

from conveyor.data import catalogue, open_dataset
from conveyor.data.formats import locate, tfds, tfrecord_dataset
from conveyor.data.formats.tfrecord_example import encode_example
from conveyor.data.open import read_copy
from conveyor.data.verify import verify
from conveyor.errors import UserError
from conveyor.options import Options


def write_split(
    folder: Path, name: str, split: str, images: list[bytes], labels: list[int], shards: int = 2
) -> list[int]:
    folder.mkdir(parents=True, exist_ok=True)
    lengths = []
    for shard in range(shards):
        numbers = range(shard, len(images), shards)
        records = [
            framed(encode_example({"image": [images[i]], "label": [labels[i]], "id": [f"{split}_{i}".encode()]}))
            for i in numbers
        ]
        (folder / f"{name}-{split}.tfrecord-{shard:05d}-of-{shards:05d}").write_bytes(b"".join(records))
        lengths.append(len(numbers))
    return lengths


def make(root: Path, name: str, version: str, shape: tuple[int, ...], train: int = 7, test: int = 4) -> np.ndarray:
    """Writes both splits with their description; returns the training images in stored order."""
    folder = root / name / version
    pixels = np.random.default_rng(4).integers(0, 256, (train + test, *shape), np.uint8)
    images = [encoded(image, "PNG") for image in pixels]
    labels = [number % 10 for number in range(train + test)]
    splits = []
    for split, part in (("train", slice(0, train)), ("test", slice(train, None))):
        lengths = write_split(folder, name, split, images[part], labels[part])
        splits.append({"name": split, "shardLengths": [str(length) for length in lengths]})
    (folder / "dataset_info.json").write_text(json.dumps({"name": name, "splits": splits}))
    order = [*range(0, train, 2), *range(1, train, 2)]
    return pixels[order]


@pytest.mark.parametrize(
    ("ours", "theirs", "shape"),
    [
        ("cifar10", "cifar10", (32, 32, 3)),
        ("mnist", "mnist", (28, 28)),
        ("fashion-mnist", "fashion_mnist", (28, 28)),
        ("cifar100", "cifar100", (32, 32, 3)),
    ],
)
def test_small_sets_are_found_and_read(tmp_path: Path, ours: str, theirs: str, shape: tuple[int, ...]) -> None:
    expected = make(tmp_path, theirs, "3.0.2", shape)
    for folder in (tmp_path, tmp_path / theirs, tmp_path / theirs / "3.0.2"):
        copy = locate.search(ours, folder)
        assert copy is not None
        assert copy.layout == "tfds"
        assert copy.folder == tmp_path / theirs / "3.0.2"
    assert locate.count_images(copy) == {"train": 7, "validation": 4}
    images, labels = read_copy(copy, "train")
    np.testing.assert_array_equal(images.reshape(expected.shape), expected)
    assert images.ndim == 4
    assert labels.tolist() == [0, 2, 4, 6, 1, 3, 5]
    options = Options().replace(data=ours, data_dir=str(tmp_path), download=False)
    assert catalogue.info(options.data).train_images == 7
    assert len(open_dataset(options, "validation")) == 4


def test_the_newest_version_is_taken_and_an_incomplete_one_is_not(tmp_path: Path) -> None:
    for version in ("3.0.0", "3.0.10", "3.0.2"):
        make(tmp_path, "cifar10", version, (32, 32, 3))
    assert locate.search("cifar10", tmp_path).folder.name == "3.0.10"
    (tmp_path / "cifar10" / "3.0.10" / "cifar10-test.tfrecord-00001-of-00002").unlink()
    assert locate.search("cifar10", tmp_path).folder.name == "3.0.2"


def test_get_says_where_the_copy_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conveyor: Callable[..., tuple[int, str, str]]
) -> None:
    make(tmp_path, "cifar10", "3.0.2", (32, 32, 3))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    code, output, _ = conveyor("data", "get", "cifar10")
    assert code == 0
    assert str(tmp_path / "cifar10" / "3.0.2") in output


def test_verify_names_a_bad_record(tmp_path: Path) -> None:
    make(tmp_path, "mnist", "3.0.1", (28, 28))
    report = verify(tmp_path)
    assert report.name == "mnist"
    assert report.images == {"train": 7, "validation": 4}
    assert all("instead of" in problem for problem in report.problems)
    path = tmp_path / "mnist" / "3.0.1" / "mnist-test.tfrecord-00000-of-00002"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(bytes(content))
    assert any(str(path) in problem for problem in verify(tmp_path).problems)
    with pytest.raises(UserError, match="mnist-test"):
        read_copy(locate.search("mnist", tmp_path), "validation")


@pytest.mark.parametrize("record", [b"\xff\xff\xff", encode_example({"image": [b"x"], "label": [b"one"]}), b""])
def test_a_record_of_something_else_is_one_sentence(tmp_path: Path, record: bytes) -> None:
    make(tmp_path, "mnist", "3.0.1", (28, 28))
    (tmp_path / "mnist" / "3.0.1" / "mnist-test.tfrecord-00000-of-00002").write_bytes(framed(record))
    with pytest.raises(UserError, match=r"record at byte 0 of .* is none of mnist"):
        read_copy(locate.search("mnist", tmp_path), "validation")


def test_imagenet_as_prepared(tmp_path: Path, conveyor: Callable[..., tuple[int, str, str]]) -> None:
    folder = tmp_path / "imagenet2012" / "5.1.0"
    images = [encoded(picture(50, 60, number), quality=90) for number in range(6)]
    train = write_split(folder, "imagenet2012", "train", images, [0, 1, 2, 0, 1, 2])
    validation = write_split(folder, "imagenet2012", "validation", images[:3], [2, 1, 0], shards=1)
    write_split(folder, "imagenet2012", "test", images[:2], [-1, -1], shards=1)
    counts = {"train": train, "validation": validation, "test": [2]}
    described = [{"name": name, "shardLengths": [str(n) for n in lengths]} for name, lengths in counts.items()]
    (folder / "dataset_info.json").write_text(json.dumps({"splits": described}))
    (folder / "label.labels.txt").write_text("tench\ngoldfish\nshark\n")
    assert tfrecord_dataset.find_folder(tmp_path) == folder
    options = Options().replace(data="imagenet2012", data_dir=str(tmp_path), image_size=32)
    info = catalogue.info(options.data)
    assert (info.train_images, info.validation_images, info.class_names) == (6, 3, ("tench", "goldfish", "shark"))
    read = open_dataset(options, "validation").read(np.arange(3), 0)
    assert read.labels.tolist() == [2, 1, 0]
    assert open_dataset(options, "train").read(np.arange(6), 0).labels.tolist() == [0, 2, 1, 1, 0, 2]
    code, output, _ = conveyor("data", "get", "imagenet2012", "--data-dir", tmp_path)
    assert code == 0
    assert str(folder) in output


def test_folders_and_counts_that_are_none_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "cifar10" / "1.\u00b2.0").mkdir(parents=True)
    assert list(tfds.folders("cifar10", tmp_path)) == []
    (tmp_path / "dataset_info.json").write_text('{"splits": [{"name": "train", "shardLengths": [1e999]}]}')
    assert tfds.counts(tmp_path) is None
