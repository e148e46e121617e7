"""TFRecord: framing and Example against an independent implementation, damage, index, data set."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
from tests.data.photos import encoded, picture

from conveyor.data import catalogue, open_dataset
from conveyor.data.feed import TrainingFeed
from conveyor.data.formats import tfrecord_dataset
from conveyor.data.formats.tfrecord import index_of, read_record, scan, write_records
from conveyor.data.formats.tfrecord_example import decode_example, encode_example
from conveyor.data.labels import labels_of
from conveyor.errors import UserError
from conveyor.monitor import protobuf_wire as wire
from conveyor.monitor.protobuf_wire import masked_crc
from conveyor.options import Options
from conveyor.topology import Topology


def example_class() -> type:
    """tensorflow.Example as protobuf itself makes it from the published definition."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, int, str]) -> descriptor_pb2.DescriptorProto:
        made = file.message_type.add(name=name)
        for field, number, label, kind, type_name in fields:
            made.field.add(name=field, number=number, label=label, type=kind, type_name=type_name or None)
        return made

    message("BytesList", ("value", 1, 3, 12, ""))
    message("FloatList", ("value", 1, 3, 2, ""))
    message("Int64List", ("value", 1, 3, 3, ""))
    feature = message(
        "Feature",
        ("bytes_list", 1, 1, 11, ".tensorflow.BytesList"),
        ("float_list", 2, 1, 11, ".tensorflow.FloatList"),
        ("int64_list", 3, 1, 11, ".tensorflow.Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message("Features", ("feature", 1, 3, 11, ".tensorflow.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=".tensorflow.Feature")
    entry.options.map_entry = True
    message("Example", ("features", 1, 1, 11, ".tensorflow.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


EXAMPLE = example_class()


def crc32c(data: bytes) -> int:
    """Bit by bit from the polynomial, independent of any library."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    def masked(part: bytes) -> bytes:
        crc = crc32c(part)
        return struct.pack("<I", ((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8 & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def protobuf_example(image: bytes, label: int, filename: str) -> bytes:
    made = EXAMPLE()
    made.features.feature["image/encoded"].bytes_list.value.append(image)
    made.features.feature["image/class/label"].int64_list.value.append(label)
    made.features.feature["image/filename"].bytes_list.value.append(filename.encode())
    made.features.feature["image/object/bbox/xmin"].float_list.value.extend([0.25, 0.5])
    return made.SerializeToString()


def test_known_checksum() -> None:
    """The CRC-32C check value of the nine digits, masked."""
    crc = 0xE3069283
    assert crc32c(b"123456789") == crc
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_our_files_are_byte_for_byte_those_of_the_format(tmp_path: Path) -> None:
    records = [b"", b"a", bytes(range(256)) * 5]
    assert write_records(tmp_path / "x", records) == 3
    assert (tmp_path / "x").read_bytes() == b"".join(framed(record) for record in records)


def test_records_of_another_writer_are_read_at_random(tmp_path: Path) -> None:
    records = [bytes([i]) * (i * 7 % 50) for i in range(30)]
    (tmp_path / "x").write_bytes(b"".join(framed(record) for record in records))
    offsets = scan(tmp_path / "x")
    for i in (29, 0, 13):
        assert read_record(tmp_path / "x", *map(int, offsets[i])) == records[i]


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.one_of(
            st.lists(st.binary(max_size=20), min_size=1, max_size=4),
            st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
            st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4),
        ),
        max_size=5,
    )
)
def test_examples_go_through_protobuf_and_back(features: dict[str, list[bytes] | list[int] | list[float]]) -> None:
    ours = encode_example(features)
    theirs = EXAMPLE()
    theirs.ParseFromString(ours)
    assert set(theirs.features.feature) == set(features)
    for name, values in features.items():
        kind = theirs.features.feature[name].WhichOneof("kind")
        assert list(getattr(theirs.features.feature[name], kind).value) == values
    assert decode_example(theirs.SerializeToString()) == features
    assert decode_example(ours) == features


@given(st.binary(max_size=60))
def test_any_bytes_give_features_or_a_value_error(data: bytes) -> None:
    try:
        found = decode_example(data)
    except ValueError:
        found = {}
    assert isinstance(found, dict)


def test_numbers_that_are_no_float32_give_features() -> None:
    """A list of floats may be written as numbers of any width."""
    feature = wire.field(2, bytes([1 << 3]) + wire.varint(1 << 40))
    assert decode_example(wire.field(1, wire.field(1, wire.field(1, b"x") + wire.field(2, feature)))) == {"x": [0.0]}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content, second: content[: second + 5], r"at byte \d+: the file ends inside the record's header"),
        (lambda content, second: content[:-3], "the file ends inside the record"),
        (lambda content, second: content[:second] + b"\1" + content[second + 1 :], "checksum of its length"),
    ],
)
def test_damaged_frames_name_file_and_offset(tmp_path: Path, damage: object, message: str) -> None:
    path = tmp_path / "train-00000-of-00001"
    write_records(path, [b"x" * 100, b"y" * 200])
    path.write_bytes(damage(path.read_bytes(), 116))  # type: ignore[operator]
    with pytest.raises(UserError, match=message) as error:
        scan(path)
    assert f"{path} is damaged at byte 116" in str(error.value)


def test_damaged_data_are_found_when_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_records(path, [b"x" * 100, b"y" * 200])
    content = bytearray(path.read_bytes())
    content[150] ^= 1
    path.write_bytes(content)
    offsets = scan(path)
    assert read_record(path, *map(int, offsets[0])) == b"x" * 100
    with pytest.raises(UserError, match="at byte 116: the checksum of its data"):
        read_record(path, *map(int, offsets[1]))


def test_the_index_is_kept_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_records(path, [b"abc"] * 5)
    assert len(index_of(path)) == 5
    monkeypatch.setattr("conveyor.data.formats.tfrecord.scan", lambda path: pytest.fail("scanned again"))
    assert len(index_of(path)) == 5
    monkeypatch.undo()
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path / "cache"))
    write_records(path, [b"abc"] * 7)
    assert len(index_of(path)) == 7
    for cached in (tmp_path / "cache" / "index").iterdir():
        cached.write_bytes(b"damaged")
    assert len(index_of(path)) == 7


def write_shards(folder: Path, split: str, shards: int, per_shard: int) -> list[tuple[bytes, int]]:
    """Files made by protobuf and the bit-by-bit CRC; returns the images and labels."""
    folder.mkdir(exist_ok=True)
    made = []
    for shard in range(shards):
        content = b""
        for i in range(per_shard):
            image, label = encoded(picture(30 + i, 40, shard * 10 + i), quality=95), 1 + (shard + i) % 3
            made.append((image, label - 1))
            content += framed(protobuf_example(image, label, f"{shard}_{i}.JPEG"))
        (folder / tfrecord_dataset.shard_name(split, shard, shards)).write_bytes(content)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path / "records", "train", 4, 3)
    write_shards(tmp_path / "records", "validation", 2, 2)
    (tmp_path / "records" / "labels.txt").write_text("one\ntwo\nthree\n")
    return tmp_path / "records"


def test_files_of_another_writer_are_a_data_set(folder: Path) -> None:
    made = write_shards(folder, "train", 4, 3)
    options = Options().replace(data="folder", data_dir=str(folder), train_crop="none")
    info = catalogue.info(options.data)
    assert (info.train_images, info.validation_images, info.class_names) == (12, 4, ("one", "two", "three"))
    dataset = open_dataset(options, "train", 16, 3)
    raw = dataset.read(np.array([11, 0, 5]), 0)
    assert raw.labels.tolist() == [made[i][1] for i in (11, 0, 5)]
    assert torch.equal(raw.images[1], dataset.read(np.array([0]), 0).images[0])
    assert list(dataset.shards()) == [3, 3, 3, 3]


@pytest.mark.parametrize("shuffle", ["full", "shards", "none"])
def test_every_way_of_shuffling_visits_all(folder: Path, shuffle: str) -> None:
    options = Options().replace(data="folder", data_dir=str(folder))
    dataset = open_dataset(options, "train", 8, 3)
    with TrainingFeed(dataset, Topology(4), updates_per_epoch=3, stop_update=3, shuffle=shuffle) as feed:
        samples = torch.cat([batch.samples for batch in feed])
    assert sorted(samples.tolist()) == list(range(12))
    assert (samples.tolist() == list(range(12))) == (shuffle == "none")


def test_missing_shards_are_named(folder: Path) -> None:
    (folder / "train-00002-of-00004").unlink()
    with pytest.raises(UserError, match="train-00002-of-00004"):
        catalogue.info(Options().replace(data="folder", data_dir=str(folder)).data)


def test_other_records_are_refused(folder: Path) -> None:
    write_records(folder / "train-00000-of-00004", [encode_example({"x": [1]}), b"\xff\xff\xff", b""])
    dataset = open_dataset(Options().replace(data="folder", data_dir=str(folder)), "train", 8, 3)
    for index, message in ((0, "no image/encoded"), (1, "no Example")):
        with pytest.raises(UserError, match=message):
            dataset.read(np.array([index]), 0)


@pytest.mark.parametrize("label", [0, 4])
def test_a_class_that_the_data_do_not_have_is_named(folder: Path, label: int) -> None:
    example = encode_example({"image/encoded": [encoded(picture())], "image/class/label": [label]})
    write_records(folder / "train-00000-of-00004", [example] * 3)
    options = Options().replace(data="folder", data_dir=str(folder))
    dataset = open_dataset(options, "train", 8, 3)
    told = f"record at byte 0 of .* has the class {label - 1}, but there are 3 classes"
    with (
        TrainingFeed(dataset, Topology(4), updates_per_epoch=3, shuffle="none") as feed,
        pytest.raises(UserError, match=told),
    ):
        next(feed)
    with pytest.raises(UserError, match=told):
        labels_of(dataset)


def test_names_of_classes_that_are_no_text_are_one_sentence(folder: Path) -> None:
    (folder / "labels.txt").write_bytes(b"one\ncaf\xe9\n")
    with pytest.raises(UserError, match=r"labels\.txt is no text in UTF-8"):
        catalogue.info(Options().replace(data="folder", data_dir=str(folder)).data)


def test_imagenet_records_without_labels_have_a_thousand_classes(folder: Path) -> None:
    (folder / "labels.txt").unlink()
    info = catalogue.info(Options().replace(data="imagenet", data_dir=str(folder.parent), max_train_images=5).data)
    assert info.num_classes == 1000
    info = catalogue.info(Options().replace(data="imagenet", data_dir=str(folder)).data)
    assert (info.train_images, info.validation_images, info.num_classes) == (12, 4, 1000)
    with pytest.raises(UserError, match=r"labels\.txt"):
        catalogue.info(Options().replace(data="folder", data_dir=str(folder)).data)


def test_a_file_that_lost_whole_records_is_named(tmp_path: Path, conveyor: Callable[..., tuple[int, str, str]]) -> None:
    """Cut after a record, a file looks complete: only the stated number of images tells."""
    examples = [encode_example({"image/encoded": [encoded(picture())], "image/class/label": [1]}) for _ in range(4)]
    for split in ("train", "validation"):
        write_records(tmp_path / f"{split}-00000-of-00001", examples)
    (tmp_path / tfrecord_dataset.SUMMARY).write_text('{"train_images": 4, "validation_images": 4, "classes": ["a"]}')
    assert conveyor("data", "verify", tmp_path)[0] == 0
    write_records(tmp_path / "train-00000-of-00001", examples[:3])
    code, out, _ = conveyor("data", "verify", tmp_path)
    assert (code, "has 3 images for train, but states 4" in out) == (1, True)
    words = ["--data", "imagenet", "--data-dir", tmp_path, "--model", "resnet8", "--image-size", 16, "--updates", 1]
    code, _, err = conveyor("train", "--run-dir", tmp_path / "run", *words, "--micro-batch-size", 2, "--layout", "1x1")
    assert code == 2
    assert "has 3 images for train, but states 4" in err
