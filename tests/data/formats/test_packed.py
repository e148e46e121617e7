"""Tar shards and parquet files of images: the same run as from class folders, whatever is read first."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.photos import encoded, make_folder, picture
from tests.run.runs import assert_same_bits, checkpoint, train

from conveyor.data.catalogue import info
from conveyor.data.formats import divide, lists, packed
from conveyor.data.formats.stores import PackedStore
from conveyor.data.open import open_dataset
from conveyor.data.verify import verify
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.options.data import DataOptions

SMALL: dict[str, Any] = {"image_size": 16, "micro_batch_size": 2, "accumulation": 2, "updates_per_epoch": None}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    make_folder(tmp_path / "photos", train=8, validation=4)
    return tmp_path / "photos"


def samples(folder: Path, split: str) -> list[tuple[str, int, bytes]]:
    found = sorted((folder / split).rglob("*.JPEG"))
    return [(path.stem, ("ape", "bee").index(path.parent.name), path.read_bytes()) for path in found]


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def to_tar(folder: Path, target: Path, shards: int = 2) -> Path:
    target.mkdir()
    (target / "labels.txt").write_text("ape\nbee\n")
    for split in ("train", "validation"):
        rows = samples(folder, split)
        for shard, part in enumerate(np.array_split(np.arange(len(rows)), shards)):
            with tarfile.open(target / f"photos-{split}-{shard:04d}.tar", "w") as archive:
                for number in part:
                    _, label, content = rows[number]
                    add(archive, f"some/{number:06d}.jpg", content)
                    add(archive, f"some/{number:06d}.cls", str(label).encode())
                    add(archive, f"some/{number:06d}.txt", b"a caption")
    return target


def to_parquet(folder: Path, target: Path) -> Path:
    pa = pytest.importorskip("pyarrow", reason="parquet is an extra")
    parquet = pytest.importorskip("pyarrow.parquet")
    (target / "data").mkdir(parents=True)
    features = {"image": {"_type": "Image"}, "label": {"names": ["ape", "bee"], "_type": "ClassLabel"}}
    for split, name in (("train", "train"), ("validation", "test")):
        rows = [{"image": {"bytes": c, "path": n}, "label": label} for n, label, c in samples(folder, split)]
        table = pa.Table.from_pylist(rows).replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        )
        parquet.write_table(table, target / "data" / f"{name}-00000-of-00001.parquet", row_group_size=3)
    return target


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_packed_images_train_like_their_folder_and_resume_exactly(photos: Path, tmp_path: Path, form: str) -> None:
    where = (to_tar if form == "tar" else to_parquet)(photos, tmp_path / "packed")
    found = info(DataOptions(data_dir=str(where)))
    assert (found.train_images, found.validation_images, found.class_names) == (16, 8, ("ape", "bee"))
    train(tmp_path / "folder", data_dir=str(photos), **SMALL)
    train(tmp_path / "parts", data_dir=str(where), **SMALL, max_time="0s")
    train(tmp_path / "parts", data_dir=str(where), **SMALL, resume="auto")
    assert_same_bits(checkpoint(tmp_path / "folder", 8), checkpoint(tmp_path / "parts", 8))


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_any_image_is_read_alone(photos: Path, tmp_path: Path, form: str) -> None:
    where = (to_tar if form == "tar" else to_parquet)(photos, tmp_path / "packed")
    store = PackedStore(divide.listing(where, DataOptions(), 0.1), "train")
    expected = samples(photos, "train")
    for index in (13, 0, 7, 15):
        fetched = store.fetch(index)
        assert (fetched.data, fetched.label) == (expected[index][2], expected[index][1])
    assert list(store.shards()) == ([8, 8] if form == "tar" else [16])
    again = PackedStore(divide.listing(where, DataOptions(), 0.1), "train")
    assert again.fetch(5).data == expected[5][2]


def test_folds_and_exclusion_work_on_shards(photos: Path, tmp_path: Path) -> None:
    where = to_tar(photos, tmp_path / "packed")
    out = tmp_path / "out.txt"
    whole = divide.listing(where, DataOptions(folds=4, fold=1), 0.1)
    name = whole.files["train"][3][0]
    out.write_text(name)
    found = divide.listing(where, DataOptions(folds=4, fold=1, exclude_images=str(out)), 0.1)
    assert found.files["train"] == tuple(pair for pair in whole.files["train"] if pair[0] != name)
    dataset = open_dataset(
        Options().replace(data_dir=str(where), folds=4, fold=1, exclude_images=str(out)), "train", 16, 3
    )
    batch = dataset.read(np.arange(len(dataset)), 0)
    assert batch.labels.tolist() == [label for _, label in found.files["train"]]


def test_labels_as_text_and_in_json(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, label in enumerate(("dog", "cat", "dog")):
            add(archive, f"{number}.json", json.dumps({"label": label}).encode())
            add(archive, f"{number}.png", encoded(picture(seed=number), "PNG"))
    found = packed.read(packed.find(tmp_path))
    assert found.classes == ("cat", "dog")
    assert found.files["train"] == (("a.tar/0.png", 1), ("a.tar/1.png", 0), ("a.tar/2.png", 1))


def test_what_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        add(archive, "0.jpg", b"image")
    with pytest.raises(UserError, match=r"no 0.cls for 0.jpg"):
        packed.read(packed.find(tmp_path))
    for text in (b"5", b'"label"', b"[1]"):
        with tarfile.open(tmp_path / "train.tar", "w") as archive:
            add(archive, "0.jpg", b"image")
            add(archive, "0.json", text)
        with pytest.raises(UserError, match="no JSON object"):
            packed.read(packed.find(tmp_path))
    with tarfile.open(tmp_path / "train.tar", "w:gz") as archive:
        add(archive, "0.jpg", b"image")
    with pytest.raises(UserError, match="unpack compressed ones first"):
        packed.read(packed.find(tmp_path))


def test_a_file_cut_short_is_named(photos: Path, tmp_path: Path) -> None:
    where = to_tar(photos, tmp_path / "packed", shards=1)
    store = PackedStore(divide.listing(where, DataOptions(), 0.1), "train")
    with (where / "photos-train-0000.tar").open("r+b") as file:
        file.truncate(2000)
    with pytest.raises(UserError, match="ends inside"):
        store.fetch(15)


def test_shards_and_lists_are_verified_image_by_image(photos: Path, tmp_path: Path) -> None:
    for folder in (to_tar(photos, tmp_path / "shards"), to_parquet(photos, tmp_path / "hub")):
        found = verify(folder)
        assert (found.name, found.images, found.classes, found.problems) == (
            "packed",
            {"train": 16, "validation": 8},
            2,
            [],
        )
    shard = tmp_path / "shards" / "photos-train-0000.tar"
    with tarfile.open(shard) as archive:
        member = archive.getmembers()[0]
    content = bytearray(shard.read_bytes())
    content[member.offset_data + 300 : member.offset_data + member.size] = bytes(member.size - 300)
    shard.write_bytes(content)
    (problem,) = verify(tmp_path / "shards").problems
    assert "some/000000.jpg" in problem
    lines = [f"{path.relative_to(photos)},{path.parent.name};z,train" for path in sorted(photos.rglob("*.JPEG"))]
    (photos / "images.csv").write_text("\n".join(["path,labels,split", *lines, "lost.jpg,,train"]))
    (photos / "train" / "ape" / "3.JPEG").write_bytes(b"no picture")
    found = verify(photos / "images.csv")
    assert (found.name, found.images, found.classes) == ("list", {"train": 25}, 3)
    assert [any(name in problem for name in ("3.JPEG", "lost.jpg")) for problem in found.problems] == [True, True]
    (tmp_path / "hub" / "data" / "train-00000-of-00001.parquet").write_bytes(b"PAR1 nothing")
    assert len(verify(tmp_path / "hub").problems) == 1


@pytest.mark.parametrize("what", ["images", "list"])
def test_damage_inside_a_parquet_file_is_named(photos: Path, tmp_path: Path, what: str) -> None:
    """Its head and its end are as they were."""
    if what == "images":
        where = to_parquet(photos, tmp_path / "packed") / "data" / "train-00000-of-00001.parquet"
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        where = tmp_path / "list" / "train.parquet"
        where.parent.mkdir()
        parquet.write_table(pyarrow.table({"path": [f"{n:050d}" for n in range(99)], "label": ["ape"] * 99}), where)
    whole = bytearray(where.read_bytes())
    whole[30:600] = bytes(570)
    where.write_bytes(whole)
    with pytest.raises(UserError, match=r"train.*\.parquet is no readable parquet file"):
        packed.read(packed.find(where.parent)) if what == "images" else lists.read(lists.find(where.parent), look=False)


def test_a_damaged_index_is_made_again(photos: Path, tmp_path: Path) -> None:
    where = to_tar(photos, tmp_path / "packed", shards=1)
    expected = packed.read(packed.find(where))
    for path in (tmp_path / "cache" / "packed").glob("*.npz"):
        whole = path.read_bytes()
        for content in (b"", whole[: len(whole) // 2], whole[:60] + bytes(60) + whole[120:], b"\x80\x04N."):
            path.write_bytes(content)
            packed._read.cache_clear()
            assert packed.read(packed.find(where)).files == expected.files


def test_a_schema_of_another_kind_names_no_classes(photos: Path, tmp_path: Path) -> None:
    where = to_parquet(photos, tmp_path / "packed") / "data" / "train-00000-of-00001.parquet"
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(where)
    features = json.dumps({"info": {"features": {"label": "text"}}})
    parquet.write_table(table.replace_schema_metadata({"huggingface": features}), where)
    assert packed.read(packed.find(where.parent)).classes == ("0", "1")
