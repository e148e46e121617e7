"""Image folders and TFRecord files as data sets: keyed crops, bad images, cache, shards."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.photos import encoded, make_folder, picture

from conveyor.data import catalogue, open_dataset
from conveyor.data.feed import TrainingFeed, ValidationFeed
from conveyor.data.formats.folders import scan
from conveyor.data.formats.stores import CachedStore, FolderStore, with_cache
from conveyor.data.transform.prepare import Prepare
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.topology import Topology


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_folder(tmp_path / "images")
    return tmp_path / "images"


def options(folder: Path, **changes: object) -> Options:
    return Options().replace(data="folder", data_dir=str(folder), **changes)


def test_validation_is_the_central_crop(folder: Path) -> None:
    dataset = open_dataset(options(folder), "validation", 32, 3)
    assert len(dataset) == 6
    raw = dataset.read(np.arange(6), 0)
    assert raw.labels.tolist() == [0, 0, 0, 1, 1, 1]
    paths = sorted((folder / "validation").rglob("*.JPEG"))
    for i, path in enumerate(paths):
        image = Image.open(path)
        side = min(image.size) * 32 / int(32 * 256 / 224)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        box = (left, top, left + side, top + side)
        expected = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR, box=box)).astype(int)
        assert np.abs(raw.images[i].numpy() - expected).mean() < 8


def test_training_crops_are_keyed_by_sample_and_epoch(folder: Path) -> None:
    dataset = open_dataset(options(folder), "train", 24, 3)
    whole = dataset.read(np.arange(12), 0).images
    torch.testing.assert_close(dataset.read(np.array([7, 3]), 0).images, whole[[7, 3]], rtol=0, atol=0)
    assert (dataset.read(np.arange(12), 1).images != whole).any()
    again = open_dataset(options(folder), "train", 24, 3).read(np.arange(12), 0).images
    assert torch.equal(again, whole)
    other = open_dataset(options(folder, seed=1), "train", 24, 3).read(np.arange(12), 0).images
    assert (other != whole).any()


@pytest.mark.parametrize("crop", ["resized", "distorted", "resize-resized", "centre", "none", "pad"])
def test_every_crop_works_from_file_to_network(folder: Path, crop: str) -> None:
    chosen = options(folder, train_crop=crop, crop_padding=2)
    info = catalogue.info(chosen.data)
    prepare = Prepare(chosen.replace(image_size=24), info)
    with TrainingFeed(
        open_dataset(chosen, "train", 24, 3), Topology(5), updates_per_epoch=2, stop_update=2, threads=2
    ) as feed:
        batches = list(feed)
    x, target = prepare(batches[0], train=True)
    assert x.shape == (5, 3, 24, 24)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert set(target.labels.tolist()) <= {0, 1}
    assert set(feed.statistics()) >= {"read", "decode", "resize", "wait", "skipped"}


def test_threads_do_not_change_the_result(folder: Path) -> None:
    def images(threads: int) -> torch.Tensor:
        dataset = open_dataset(options(folder), "train", 16, 3)
        with TrainingFeed(dataset, Topology(6), updates_per_epoch=2, stop_update=4, threads=threads) as feed:
            return torch.cat([batch.images for batch in feed])

    assert torch.equal(images(1), images(4))


def test_progressive_size_is_decoded_directly(folder: Path) -> None:
    dataset = open_dataset(options(folder, progressive_image_size=["0:16", "1:32"]), "train", 32, 3)
    assert dataset.read(np.arange(2), 0).images.shape == (2, 16, 16, 3)
    assert dataset.read(np.arange(2), 1).images.shape == (2, 32, 32, 3)
    assert open_dataset(options(folder, progressive_image_size=["0:16"]), "validation", 32, 3).shape(0) == (32, 32, 3)


def test_grey_networks_read_grey_images(folder: Path) -> None:
    chosen = options(folder, in_channels=1)
    dataset = open_dataset(chosen, "validation", 16, 1)
    batch = next(iter(ValidationFeed(dataset, 4)))
    assert batch.images.shape == (4, 16, 16, 1)
    assert Prepare(chosen.replace(image_size=16), catalogue.info(chosen.data))(batch, False)[0].shape == (4, 1, 16, 16)


def test_a_bad_image_stops_with_its_name(folder: Path) -> None:
    bad = folder / "train" / "ape" / "2.JPEG"
    bad.write_bytes(bad.read_bytes()[:400])
    dataset = open_dataset(options(folder), "train", 16, 3)
    with TrainingFeed(dataset, Topology(12), updates_per_epoch=1, stop_update=1) as feed:
        with pytest.raises(UserError, match="--skip-bad-images") as error:
            next(feed)
        assert str(bad) in str(error.value)


def test_bad_images_are_skipped_and_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, content in ((2, b"nothing"), (3, encoded(picture(60, 60))[:500])):
        (folder / "train" / "ape" / f"{number}.JPEG").write_bytes(content)
    dataset = open_dataset(options(folder, skip_bad_images=True, train_crop="none"), "train", 16, 3)
    with caplog.at_level(logging.WARNING):
        raw = dataset.read(np.arange(12), 0)
        dataset.read(np.arange(12), 1)
    assert dataset.statistics()["skipped"] == 2
    assert caplog.text.count("skipping") == 2
    for number in (2, 3):
        assert torch.equal(raw.images[number], raw.images[4])
    assert raw.labels.tolist() == [0] * 6 + [1] * 6


def test_a_validation_says_what_stands_for_a_bad_image(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = next((folder / "validation").rglob("*.JPEG"))
    bad.write_bytes(b"nothing")
    dataset = open_dataset(options(folder, skip_bad_images=True), "validation", 16, 3)
    with caplog.at_level(logging.WARNING):
        dataset.read(np.arange(len(dataset)), 0)
    assert "counts the image after it twice" in caplog.text


def test_nothing_but_bad_images_ends(folder: Path) -> None:
    for path in (folder / "train").rglob("*.JPEG"):
        path.write_bytes(b"nothing")
    dataset = open_dataset(options(folder, skip_bad_images=True), "train", 16, 3)
    with pytest.raises(UserError, match="damaged"):
        dataset.read(np.array([0]), 0)


def test_missing_folders_and_splits(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        open_dataset(options(tmp_path / "nowhere"), "train", 16, 3)
    with pytest.raises(UserError, match="--data-dir"):
        open_dataset(Options().replace(data="imagenet"), "train", 16, 3)
    for path in sorted((folder / "validation").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (folder / "validation").rmdir()
    with pytest.raises(UserError, match="no images for validation"):
        open_dataset(options(folder), "validation", 16, 3)


def test_the_cache_holds_no_more_than_its_budget(folder: Path) -> None:
    store = FolderStore(scan(folder), "train")
    sizes = [len(store.fetch(i)[0]) for i in range(12)]
    cached = CachedStore(store, sum(sizes[:3]) + 10)
    for _ in range(2):
        assert [len(cached.fetch(i)[0]) for i in range(12)] == sizes
    assert cached.used == sum(sizes[:3])
    (folder / "train" / "ape" / "0.JPEG").unlink()
    assert len(cached.fetch(0)[0]) == sizes[0]


def test_the_cache_is_chosen_by_free_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(scan(folder), "train")
    assert with_cache(store, "off") is store
    assert isinstance(with_cache(store, "1MiB"), CachedStore)
    assert isinstance(with_cache(store, "auto"), CachedStore)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 1000}))
    assert with_cache(store, "auto") is store
    with pytest.raises(UserError, match="not a size"):
        with_cache(store, "lots")


def test_imagenet_may_be_a_subset(folder: Path) -> None:
    chosen = Options().replace(data="imagenet", data_dir=str(folder))
    info = catalogue.info(chosen.data)
    assert (info.name, info.train_images, info.num_classes) == ("imagenet", 12, 2)
    assert len(open_dataset(chosen, "train", 16, 3)) == 12


def test_a_link_that_leads_nowhere_is_named_when_it_is_read(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "train" / "ape" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    dataset = open_dataset(options(tmp_path), "train", 16, 3)
    with pytest.raises(UserError, match=r"cannot read .*gone\.jpg: No such file"):
        dataset.read(range(len(dataset)), 0)
    with pytest.raises(UserError, match=r"gone\.jpg: No such file or directory; mend or remove it, or pass --skip-bad"):
        dataset.read(np.arange(len(dataset)), 0)
    skipping = open_dataset(options(tmp_path, skip_bad_images=True), "train", 16, 3)
    skipping.read(np.arange(len(skipping)), 0)
    assert skipping.statistics()["skipped"] == 1
