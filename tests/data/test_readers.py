"""idx and CIFAR files: right values from right files, one sentence from wrong ones."""

import collections
import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.small import make_cifar10, make_mnist, write_idx

from conveyor.data import open_dataset
from conveyor.data.formats import cifar
from conveyor.data.formats.idx import read_idx
from conveyor.data.formats.pickled import read_pickled
from conveyor.errors import UserError
from conveyor.options import Options


@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_is_read_plain_and_zipped(tmp_path: Path, zipped: bool) -> None:
    images, labels = make_mnist(tmp_path, zipped=zipped)
    dataset = open_dataset(Options().replace(data="mnist", data_dir=str(tmp_path)), "train")
    raw = dataset.read(np.array([3, 0, 3]), 0)
    np.testing.assert_array_equal(raw.images.numpy()[..., 0], images[[3, 0, 3]])
    assert raw.labels.tolist() == labels[[3, 0, 3]].tolist()
    assert len(open_dataset(Options().replace(data="mnist", data_dir=str(tmp_path)), "validation")) == 12


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin"),
        (b"PK\3\4 something else", "does not begin"),
        (b"\0\0\x0d\3" + b"\0" * 12, "idx file of bytes"),
        (b"\0\0\x08\1\0\0\0\5abc", "header says 5"),
        (b"\x1f\x8b\x08\0broken", "damaged"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_idx(tmp_path / "file")
    assert str(tmp_path / "file") in str(error.value)


def test_wrong_labels_are_refused(tmp_path: Path) -> None:
    make_mnist(tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.full(24, 11, np.uint8))
    with pytest.raises(UserError, match="10 classes"):
        open_dataset(Options().replace(data="mnist", data_dir=str(tmp_path)), "train")


def test_cifar10_binary(tmp_path: Path) -> None:
    images, labels = make_cifar10(tmp_path / "cifar-10-batches-bin")
    dataset = open_dataset(Options().replace(data="cifar10", data_dir=str(tmp_path)), "train")
    raw = dataset.read(np.arange(30), 0)
    np.testing.assert_array_equal(raw.images.numpy(), images)
    np.testing.assert_array_equal(raw.labels.numpy(), labels)
    assert dataset.class_names[3] == "cat"


@pytest.mark.parametrize("zipped", ["data_batch_3.bin.gz", "data_batch_3.bin"])
@pytest.mark.parametrize("kept", [5000, -1])
def test_a_truncated_zipped_cifar_is_named(tmp_path: Path, zipped: str, kept: int) -> None:
    """Cut in the middle of the zipped bytes, or zipped after it had lost whole records: 26 of 30 images."""
    folder = tmp_path / "cifar-10-batches-bin"
    make_cifar10(folder)
    content = (folder / "data_batch_3.bin").read_bytes()
    (folder / "data_batch_3.bin").unlink()
    (folder / zipped).write_bytes(gzip.compress(content)[:kept] if kept > 0 else gzip.compress(content[: 2 * 3073]))
    message = f"{zipped} is damaged" if kept > 0 else f"{folder} has 26 images for train instead of 50000"
    with pytest.raises(UserError, match=message):
        open_dataset(Options().replace(data="cifar10", data_dir=str(tmp_path)), "train")


def test_cifar100_uses_the_fine_label(tmp_path: Path) -> None:
    record = bytes([7, 42]) + bytes(range(256)) * 12
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(record * 3)
    (tmp_path / "fine_label_names.txt").write_text("\n".join(f"class{i}" for i in range(100)))
    dataset = open_dataset(Options().replace(data="cifar100", data_dir=str(tmp_path)), "train")
    assert dataset.read(np.array([0]), 0).labels.tolist() == [42]
    assert dataset.num_classes == 100
    assert dataset.class_names[42] == "class42"
    assert dataset.read(np.array([0]), 0).images[0, 0, :4, 0].tolist() == [0, 1, 2, 3]


def test_cut_short_binary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\1" * 3072)
    with pytest.raises(UserError, match="3073-byte records"):
        cifar.read_binary(tmp_path / "x.bin", 1)


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("as_bytes", [False, True])
def test_python_batches_of_every_protocol_are_read(tmp_path: Path, protocol: int, as_bytes: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1100, 3072), np.uint8)
    labels = [int(i % 10) for i in range(1100)]
    batch = {"batch_label": "training batch 1 of 5", "labels": labels, "data": pixels, "filenames": ["a.png"] * 1100}
    content = {key.encode(): value for key, value in batch.items()} if as_bytes else batch
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(content, protocol))
    images, found = cifar.read_python(tmp_path / "data_batch_1")
    np.testing.assert_array_equal(images.transpose(0, 3, 1, 2).reshape(1100, -1), pixels)
    assert found.tolist() == labels


def test_python2_pickles_are_read(tmp_path: Path) -> None:
    """The official files come from Python 2: byte strings for texts and pixels."""
    data = bytes(range(256)) * 12
    program = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + len(data).to_bytes(4, "little") + data + b"tbU\x06labelsq\x08]q\x09K\x05au."
    )
    (tmp_path / "test_batch").write_bytes(program)
    images, labels = cifar.read_python(tmp_path / "test_batch")
    assert labels.tolist() == [5]
    assert images[0, 0, :3, 0].tolist() == [0, 1, 2]


class Hostile:
    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_hostile_pickles_are_refused_and_do_nothing(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    for value in (
        Hostile(os.system, f"touch {trace}"),
        {"data": Hostile(eval, f"open({str(trace)!r}, 'w')"), "labels": [1]},
        {"data": np.array([Hostile(os.mkdir, str(trace))], dtype=object), "labels": [1]},
        collections.OrderedDict(data=1),
    ):
        path = tmp_path / "data_batch_1"
        path.write_bytes(pickle.dumps(value, protocol))
        with pytest.raises(UserError):
            cifar.read_python(path)
    assert not trace.exists()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_damage_gives_a_sentence(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [1]}, 2))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, 150))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "data_batch_1"
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    try:
        images, labels = cifar.read_python(path)
    except UserError as error:
        message = str(error)
    else:
        message = f"{path}: {len(images)} images, {len(labels)} labels"
    assert str(path) in message


def test_read_pickled_refuses_keys_and_states_out_of_place(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for program in (
        b"\x80\x02}K\x01K\x02s.",
        b"\x80\x02]}b.",
        b"\x80\x02}K\x01a.",
        b"\x80\x02.",
        b"\x80\x02cbuiltins\nexec\n.",
        b"\x80\x02c_codecs\nencode\n}U\x01xK\x01sb.",  # attributes for what we lend it
        b"\x80\x02cnumpy\ndtype\n}U\x01xK\x01sb.",
        b"\x80\x02cnumpy\nndarray\nN}U\x01xK\x01s\x86b.",
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a place in the memo that would take gigabytes
        b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93.",
        b"\x80\x02]Pmine\n.",
    ):
        path.write_bytes(program)
        with pytest.raises(UserError):
            read_pickled(path)
