"""Bounding boxes: read from CSV and TFRecord, found by name, and what random crops hold of them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.photos import make_folder

from conveyor.data import catalogue, open_dataset
from conveyor.data.feed import TrainingFeed
from conveyor.data.formats.boxes import CSV_NAME, FEATURES, Boxes, boxes_of, covered, has_boxes, read_boxes
from conveyor.data.formats.folders import scan
from conveyor.data.formats.stores import FolderStore
from conveyor.data.formats.tfrecord import read_record, write_records
from conveyor.data.formats.tfrecord import scan as scan_records
from conveyor.data.formats.tfrecord_builder import BuildOptions, build_tfrecords
from conveyor.data.formats.tfrecord_example import decode_example, encode_example
from conveyor.data.open import open_store
from conveyor.data.photo import crops
from conveyor.data.photo.crops import TRIES, CropRule
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.options.data import DataOptions
from conveyor.spec import resolve
from conveyor.topology import Topology

CORNER = "0.JPEG,0.9,0.9,1,1\n2.JPEG,0,0,0.15,0.2\n2.JPEG,0.9,0,1,0.1\n4.JPEG,0.45,0.45,0.5,0.5\n"
"""Small objects, most of them near the border, which many crops miss."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_folder(tmp_path / "images")
    (tmp_path / "images" / CSV_NAME).write_text(CORNER + "unknown.JPEG,0,0,1,1\n")
    return tmp_path / "images"


def options(folder: Path, **changes: object) -> Options:
    return Options().replace(
        **{"data": "folder", "data_dir": str(folder), "micro_batch_size": 2, "crop_overlap": 0.1, **changes}
    )


def share_held(crop: Sequence[float], box: Sequence[float], height: int, width: int) -> float:
    """The definition, pixel by pixel of the plane: the crop's part of the box over the box."""
    left, top, right, bottom = box[0] * width, box[1] * height, box[2] * width, box[3] * height
    across = max(0.0, min(right, crop[2]) - max(left, crop[0]))
    down = max(0.0, min(bottom, crop[3]) - max(top, crop[1]))
    return across * down / ((right - left) * (bottom - top))


def sides() -> st.SearchStrategy[tuple[float, float]]:
    return st.tuples(st.integers(0, 63), st.integers(1, 64)).map(lambda pair: (pair[0] / 64, min(1, sum(pair) / 64)))


def images() -> st.SearchStrategy[tuple[int, int, Boxes]]:
    """Height, width and up to three objects of an image."""
    box = st.tuples(sides(), sides()).map(lambda pair: [pair[0][0], pair[1][0], pair[0][1], pair[1][1]])
    return st.tuples(
        st.integers(1, 700),
        st.integers(1, 700),
        st.lists(box, max_size=3).map(lambda boxes: np.array(boxes, np.float32).reshape(-1, 4)),
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(images(), min_size=1, max_size=6),
    st.sampled_from(catalogue.RANDOM_CROPS),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.integers(0, 2**40),
)
def test_the_first_draw_that_holds_enough_of_an_object_is_taken(
    found: list[tuple[int, int, Boxes]], mode: str, share: float, first: int
) -> None:
    rule = CropRule.training(DataOptions(crop_overlap=share), mode, 224)
    heights, widths, objects = (list(column) for column in zip(*found, strict=True))
    samples = np.arange(first, first + len(found))
    got = rule.choose(3, 5, samples, heights, widths, objects)
    for row, (height, width, boxes) in enumerate(found):
        draws = rule.draw(3, 5, samples[row : row + 1], TRIES)
        tried = rule.boxes(np.full(TRIES, float(height)), np.full(TRIES, float(width)), draws).tolist()
        assert len(tried) == 10
        held = [max((share_held(crop, box, height, width) for box in boxes), default=1.0) for crop in tried]
        at = tried.index(list(got[row]))
        # The definition above divides where the source multiplies: the last bit may differ.
        assert all(each < share + 1e-9 for each in held[:at])
        assert held[at] >= share - 1e-9 or at == TRIES - 1 or tried[at] == tried[-1]


@pytest.mark.parametrize("mode", catalogue.RANDOM_CROPS)
def test_crops_that_need_no_other_draw_are_those_without_the_option(mode: str) -> None:
    steered = CropRule.training(DataOptions(crop_overlap=0.1), mode, 224)
    plain = CropRule.training(DataOptions(), mode, 224)
    sizes = np.random.default_rng(0).integers(200, 280, (400, 2)).tolist()
    heights, widths = ([size[i] for size in sizes] for i in range(2))
    samples = np.arange(400)
    objects = [np.array([[0.05, 0.05, 0.3, 0.3]], np.float32) if i % 3 else None for i in samples]
    without, got = (rule.choose(1, 2, samples, heights, widths, objects) for rule in (plain, steered))
    assert without == plain.choose(1, 2, samples, heights, widths)
    whole, high, wide = np.array(without)[:, None], np.array(heights, float), np.array(widths, float)
    held = covered(whole, high, wide, objects, 0.1)[:, 0]
    assert 20 < (~held).sum() < 200
    assert [row for row in samples if tuple(got[row]) != tuple(without[row])] == np.flatnonzero(~held).tolist()
    assert covered(np.array(got)[:, None], high, wide, objects, 0.1).mean() > 0.99
    backwards = steered.choose(1, 2, samples[::-1], heights[::-1], widths[::-1], objects[::-1])
    assert [tuple(box) for box in backwards[::-1]] == [tuple(box) for box in got]


def test_the_last_of_ten_draws_is_kept_when_none_holds_enough() -> None:
    rule = CropRule.training(DataOptions(crop_overlap=1), "resized", 32)
    everything = [np.array([[0, 0, 1, 1]], np.float32)] * 20
    got = rule.choose(0, 0, np.arange(20), [100] * 20, [150] * 20, everything)
    draws = rule.draw(0, 0, np.arange(20), TRIES)
    tried = rule.boxes(np.full(200, 100.0), np.full(200, 150.0), draws).reshape(20, TRIES, 4)
    np.testing.assert_array_equal(np.array(got), tried[:, -1])
    assert TRIES == 10


def test_every_crop_that_is_drawn_can_be_steered() -> None:
    assert crops.ATTEMPTS.keys() == set(catalogue.RANDOM_CROPS)


def test_one_of_several_objects_is_enough() -> None:
    crop = np.array([[[0.0, 0.0, 10.0, 10.0]]])
    size = np.array([100.0])
    near, far = [0.0, 0.0, 0.2, 0.5], [0.5, 0.5, 1.0, 1.0]
    assert share_held([0, 0, 10, 10], near, 100, 100) == pytest.approx(0.1)
    for boxes, held in (([far], False), ([far, near], True), ([near, far], True), ([], True)):
        objects = [np.array(boxes, np.float32).reshape(-1, 4)]
        assert covered(crop, size, size, objects, 0.09).tolist() == [[held]]
    assert covered(crop, size, size, [None], 0.1).tolist() == [[True]]


def test_boxes_are_found_by_the_name_of_the_file(folder: Path) -> None:
    named = read_boxes(folder / CSV_NAME)
    table = named.aligned(["2.JPEG", "nothing.JPEG", "0.JPEG", "2.JPEG"])
    assert table.first.tolist() == [0, 2, 2, 3, 5]
    np.testing.assert_allclose(table.of(0), [[0, 0, 0.15, 0.2], [0.9, 0, 1, 0.1]], rtol=1e-6)
    np.testing.assert_array_equal(table.of(3), table.of(0))
    assert table.of(1).shape == (0, 4)
    store = FolderStore(scan(folder), "train", named)
    found = [len(store.fetch(index).boxes) for index in range(12)]
    assert found == [1, 0, 2, 0, 1, 0] * 2
    assert FolderStore(scan(folder), "train").fetch(0).boxes is None


def test_boxes_without_an_area_and_empty_lines_count_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_text("\n1.JPEG,0.5,0.1,0.5,0.9\n\n1.JPEG,0,0,1,0.5\n2.JPEG,1,1,1,1\n")
    named = read_boxes(tmp_path / "boxes.csv")
    assert len(named.of("1.JPEG")) == 2
    assert named.aligned(["1.JPEG", "2.JPEG"]).first.tolist() == [0, 1, 1]
    lists = {
        name: [value, nothing] for name, value, nothing in zip(FEATURES, (0.0, 0.0, 2.0, 0.5), (0.5,) * 4, strict=True)
    }
    assert boxes_of(lists).tolist() == [[0, 0, 1, 0.5]]


@pytest.mark.parametrize(
    "line",
    [
        "1.JPEG,0,0,1",
        "1.JPEG,0,0,1,1,1",
        "1.JPEG,a,0,1,1",
        "1.JPEG,nan,0,1,1",
        "1.JPEG,0,0,1,1.5",
        "1.JPEG,-0.1,0,1,1",
        "1.JPEG,0.7,0,0.6,1",
        "filename,xmin,ymin,xmax,ymax",
    ],
)
def test_a_malformed_line_is_named(folder: Path, line: str) -> None:
    (folder / CSV_NAME).write_text(f"0.JPEG,0,0,1,1\n{line}\n")
    with pytest.raises(UserError, match=rf"{CSV_NAME} line 2 is not filename,xmin,ymin,xmax,ymax") as error:
        open_dataset(options(folder), "train", 16, 3)
    assert line in str(error.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "boxes.csv").write_bytes(b"0.JPEG,0,0,1,1\n\xff\xfe\x00\n")
    with pytest.raises(UserError, match=r"boxes\.csv line \d is no text"):
        read_boxes(tmp_path / "boxes.csv")


def test_what_cannot_be_steered_is_refused(folder: Path) -> None:
    for changes, words in (
        ({"train_crop": "centre"}, "--train-crop resized or distorted or resize-resized instead of centre"),
        ({"data": "digits", "data_dir": None}, "the images of digits have no bounding boxes"),
    ):
        with pytest.raises(UserError, match=words):
            resolve(options(folder, **changes))
    with pytest.raises(UserError, match="random crops"):
        open_dataset(options(folder, train_crop="none"), "train", 16, 3)
    (folder / CSV_NAME).write_text("elsewhere.JPEG,0,0,1,1\n")
    with pytest.raises(UserError, match="none of the images for train"):
        open_dataset(options(folder), "train", 16, 3)
    (folder / CSV_NAME).unlink()
    with pytest.raises(UserError, match=f"put {CSV_NAME} beside train/"):
        resolve(options(folder))
    assert resolve(options(folder, crop_overlap=0)).data.train_images == 12
    assert len(open_dataset(options(folder), "validation", 16, 3)) == 6
    assert resolve(options(folder, training=False)).data.validation_images == 6
    made = options(folder, generated_data=True, data="imagenet", max_train_images=4)
    assert len(open_dataset(resolve(made).options, "train", 16, 3)) == 4


def test_boxes_make_the_way_from_folder_to_records(folder: Path, tmp_path: Path) -> None:
    build_tfrecords(folder, tmp_path / "records", BuildOptions(3, 1, boxes=read_boxes(folder / CSV_NAME)))
    build_tfrecords(folder, tmp_path / "plain", BuildOptions(3, 1))
    stored, packed = (open_store(root, "train", DataOptions(), boxes=True) for root in (folder, tmp_path / "records"))
    expected = {fetched.data: fetched for fetched in map(stored.fetch, range(12))}
    for fetched in map(packed.fetch, range(12)):
        assert fetched.label == expected[fetched.data].label
        np.testing.assert_array_equal(fetched.boxes, expected[fetched.data].boxes)
    assert has_boxes(folder)
    assert has_boxes(tmp_path / "records")
    assert not has_boxes(tmp_path / "plain")
    with pytest.raises(UserError, match="build the files with --bounding-boxes"):
        open_dataset(options(tmp_path / "plain"), "train", 16, 3)


def test_records_whose_boxes_lack_a_side_are_named(folder: Path, tmp_path: Path) -> None:
    build_tfrecords(folder, tmp_path / "records", BuildOptions(1, 1, boxes=read_boxes(folder / CSV_NAME)))
    path = tmp_path / "records" / "train-00000-of-00001"
    features = [decode_example(read_record(path, *place)) for place in scan_records(path).tolist()]
    for each in features:
        each.pop("image/object/bbox/ymax", None)
    write_records(path, [encode_example(each) for each in features])
    store = open_store(tmp_path / "records", "train", DataOptions(), boxes=True)
    with pytest.raises(UserError, match=r"train-00000-of-00001 is no Example \(its bounding boxes lack"):
        [store.fetch(index) for index in range(12)]


@pytest.mark.parametrize("source", ["folder", "records"])
def test_bounding_boxes_steer_crops(folder: Path, tmp_path: Path, source: str) -> None:
    """Both sources, any threads, any deal of the samples: the same crops, which differ where objects were missed."""
    root = folder
    if source == "records":
        root = tmp_path / "records"
        build_tfrecords(folder, root, BuildOptions(3, 1, boxes=read_boxes(folder / CSV_NAME)))

    def fed(chosen: Options, threads: int, slots: Sequence[int]) -> dict[tuple[int, int], torch.Tensor]:
        dataset = open_dataset(chosen, "train", 16, 3)
        with TrainingFeed(
            dataset, Topology(2, accumulation=3), updates_per_epoch=2, stop_update=6, threads=threads, slots=slots
        ) as feed:
            return {
                (batch.epoch, sample): image
                for batch in feed
                for sample, image in zip(batch.samples.tolist(), batch.images, strict=True)
            }

    steered = options(root, train_crop="resized")
    whole = fed(steered, 1, (0, 1, 2))
    parts = fed(steered, 4, (1,)) | fed(steered.replace(data_cache="off"), 2, (2, 0))
    assert whole.keys() == parts.keys()
    assert len(whole) == 36
    assert all(torch.equal(image, parts[key]) for key, image in whole.items())
    plain = fed(steered.replace(crop_overlap=0), 1, (0, 1, 2))
    changed = {sample for (epoch, sample), image in whole.items() if not torch.equal(image, plain[epoch, sample])}
    store = open_store(root, "train", DataOptions(), boxes=True)
    boxed = {index for index in range(12) if len(store.fetch(index).boxes)}
    assert changed
    assert changed <= boxed
    assert len(boxed) == 6


def test_a_substitute_brings_its_own_boxes(folder: Path) -> None:
    (folder / "train" / "ape" / "1.JPEG").write_bytes(b"nothing")
    steered, plain = (
        open_dataset(options(folder, skip_bad_images=True, crop_overlap=share), "train", 16, 3) for share in (0.1, 0)
    )
    # Neither 1.JPEG nor 3.JPEG has a box, but 2.JPEG, which stands in for the bad one, has.
    for index, differs in ((1, True), (3, False)):
        read = [[data.read(np.array([index]), epoch).images for epoch in range(12)] for data in (steered, plain)]
        assert any(not torch.equal(one, other) for one, other in zip(*read, strict=True)) == differs
    assert steered.statistics()["skipped"] == 1
