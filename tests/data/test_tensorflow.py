"""TensorFlow reads what `build-tfrecords` writes, and we read what TensorFlow writes.

`recorded/read-by-tensorflow.tfrecord` was written by `build-tfrecords` and read by TensorFlow, whose answer is the .json
beside it; the same images still give the same bytes. Where TensorFlow is installed, it reads a fresh file as well.
"""

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conveyor.data.formats.boxes import read_boxes
from conveyor.data.formats.tfrecord import read_record, scan
from conveyor.data.formats.tfrecord_builder import BuildOptions, build_tfrecords
from conveyor.data.formats.tfrecord_example import decode_example

RECORDED = Path(__file__).with_name("recorded")
TEXTS = {"ape": "great ape, hominid"}
BOXES = "0.JPEG,0.1,0.2,0.6,0.9\n0.JPEG,0.0,0.0,1.0,0.5\n"


def examples(path: Path) -> list[dict[str, list[object]]]:
    return [
        {name: list(values) for name, values in decode_example(read_record(path, offset, length)).items()}
        for offset, length in scan(path).tolist()
    ]


@pytest.fixture
def rebuilt(tmp_path: Path) -> Path:
    """The recorded file's images as class folders, built anew."""
    images = tmp_path / "images"
    for features in examples(RECORDED / "read-by-tensorflow.tfrecord"):
        folder, name = (features[key][0] for key in ("image/class/synset", "image/filename"))
        assert isinstance(folder, bytes)
        assert isinstance(name, bytes)
        path = images / "train" / folder.decode() / name.decode()
        path.parent.mkdir(parents=True, exist_ok=True)
        content = features["image/encoded"][0]
        assert isinstance(content, bytes)
        path.write_bytes(content)
    shutil.copytree(images / "train", images / "validation")
    (tmp_path / "boxes.csv").write_text(BOXES)
    boxes = read_boxes(tmp_path / "boxes.csv")
    options = BuildOptions(train_shards=1, validation_shards=1, threads=1, class_texts=TEXTS, boxes=boxes)
    build_tfrecords(images, tmp_path / "records", options)
    return tmp_path / "records" / "train-00000-of-00001"


def test_the_bytes_that_tensorflow_read_are_still_those_that_we_write(rebuilt: Path) -> None:
    assert rebuilt.read_bytes() == (RECORDED / "read-by-tensorflow.tfrecord").read_bytes()


def test_tensorflow_saw_the_same_features_as_we_do() -> None:
    answer = json.loads((RECORDED / "read-by-tensorflow.json").read_text())
    ours = examples(RECORDED / "read-by-tensorflow.tfrecord")
    assert len(answer["records"]) == len(ours) == 4
    for theirs, mine in zip(answer["records"], ours, strict=True):
        assert theirs.pop("decoded shape") == [16, 20, 3]
        assert theirs.pop("parsed label") == mine["image/class/label"][0]
        hashed = {
            name: [hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value for value in values]
            for name, values in mine.items()
        }
        assert hashed == theirs
    assert sum("image/object/bbox/xmin" in features for features in ours) == 2


def test_we_read_what_tensorflow_wrote() -> None:
    found = examples(RECORDED / "written-by-tensorflow.tfrecord")
    assert len(found) == 3
    for number, features in enumerate(found):
        assert features["image/encoded"] == [b"image %d" % number]
        assert features["image/class/label"] == [number + 1]
        assert features["negative"] == [-1, -(1 << 63), (1 << 63) - 1]
        assert features["floats"] == [0.5 * number, pytest.approx(-1e30)]
        assert features["empty"] == []


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs the tensorflow package")
def test_tensorflow_itself_reads_the_files(rebuilt: Path) -> None:
    program = (
        "import sys, tensorflow as tf\n"
        "for raw in tf.data.TFRecordDataset(sys.argv[1]):\n"
        "    e = tf.train.Example.FromString(raw.numpy()).features.feature\n"
        "    image = tf.io.decode_jpeg(e['image/encoded'].bytes_list.value[0])\n"
        "    print(e['image/class/label'].int64_list.value[0], *image.shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(rebuilt)], capture_output=True, text=True, timeout=120, check=True
    )
    assert sorted(done.stdout.split("\n")[:4]) == ["1 16 20 3", "1 16 20 3", "2 16 20 3", "2 16 20 3"]
