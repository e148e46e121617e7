"""Decoding, cropping and resizing in one function: the same pixels as the separate steps, and nothing else touched."""

import contextlib
import shutil
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.data.photos import encoded, picture

from conveyor.data.photo import fused, jpeg
from conveyor.data.photo.decode import BadImageError, Encoded
from conveyor.data.photo.resize import resize_into
from conveyor.numerics.native import build

IMAGE = picture(200, 260)

compiled = pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler")


def in_steps(data: bytes, box: tuple[int, int, int, int], size: int, channels: int = 3) -> np.ndarray:
    header = jpeg.read_header(data)
    assert header is not None
    out = np.empty((size, size, channels), np.uint8)
    resize_into(out, jpeg.decode_crop(data, header, box, size, grey=channels == 1))
    return out.astype(int)


def at_once(data: bytes, box: tuple[int, int, int, int], size: int, channels: int = 3) -> np.ndarray:
    header = jpeg.read_header(data)
    assert header is not None
    batch = np.full((3, size, size, channels), 7, np.uint8)
    assert fused.crop_into(batch[1], data, header, box)
    assert (batch[0] == 7).all()
    assert (batch[2] == 7).all()
    return batch[1].astype(int)


@compiled
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("corner", [(0, 0), (101, 51), (13, 7), (196, 136), (64, 64)])
def test_a_crop_of_the_final_size_equals_a_full_decoding(subsampling: int, corner: tuple[int, int]) -> None:
    data = encoded(IMAGE, quality=85, subsampling=subsampling)
    left, top = corner
    box = (left, top, left + 64, top + 64)
    np.testing.assert_array_equal(at_once(data, box, 64), in_steps(data, box, 64))


@compiled
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_box_and_size_gives_the_pixels_of_the_separate_steps(data: st.DataObject) -> None:
    content = encoded(IMAGE, quality=90, subsampling=data.draw(st.sampled_from([0, 1, 2])))
    left, top = data.draw(st.integers(0, 258)), data.draw(st.integers(0, 198))
    right, bottom = data.draw(st.integers(left + 1, 260)), data.draw(st.integers(top + 1, 200))
    size = data.draw(st.sampled_from([1, 2, 7, 32, 57, 96, 224]))
    box = (left, top, right, bottom)
    np.testing.assert_array_equal(at_once(content, box, size), in_steps(content, box, size))


@compiled
def test_the_resize_is_pillows_within_one_level() -> None:
    data = encoded(IMAGE, quality=90, subsampling=0)
    part = np.asarray(Encoded(data).crop(np.array([20.0, 10.0, 210.0, 200.0]), 224, 3))
    expected = np.asarray(Image.fromarray(part).resize((128, 128), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(at_once(data, (20, 10, 210, 200), 128) - expected).max() <= 1


@compiled
def test_grey_pictures_and_grey_networks() -> None:
    grey, colour = encoded(IMAGE, mode="L", quality=90), encoded(IMAGE, quality=90)
    box = (30, 20, 201, 180)
    for data in (grey, colour):
        for channels in (1, 3):
            np.testing.assert_array_equal(at_once(data, box, 60, channels), in_steps(data, box, 60, channels))


@compiled
def test_restart_markers_and_comments() -> None:
    data = encoded(IMAGE, quality=85, restart_marker_rows=1, comment=b"hello")
    box = (10, 90, 122, 199)
    np.testing.assert_array_equal(at_once(data, box, 50), in_steps(data, box, 50))


@compiled
def test_unusual_files_are_left_to_the_others() -> None:
    data = encoded(IMAGE, progressive=True)
    header = jpeg.read_header(data)
    assert header is not None
    out = np.zeros((32, 32, 3), np.uint8)
    assert not fused.crop_into(out, data, header, (0, 0, 50, 50))
    Encoded(data).crop_into(out, np.array([0.0, 0.0, 50.0, 50.0]))
    np.testing.assert_array_equal(out.astype(int), in_steps(data, (0, 0, 50, 50), 32))


@compiled
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_damage_gives_pixels_or_a_reason(data: st.DataObject) -> None:
    content = bytearray(encoded(picture(40, 56), quality=70, subsampling=data.draw(st.sampled_from([0, 2]))))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    batch = np.full((3, 16, 16, 3), 7, np.uint8)
    with contextlib.suppress(BadImageError):
        image = Encoded(bytes(content))
        image.crop_into(batch[1], np.array([1.0, 2.0, image.width - 1.0, image.height - 1.0]))
    assert (batch[0] == 7).all()
    assert (batch[2] == 7).all()


@compiled
def test_threads_have_decoders_of_their_own() -> None:
    data = encoded(IMAGE, quality=85)
    box = (5, 6, 205, 190)
    expected = at_once(data, box, 48)
    results: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: results.append(at_once(data, box, 48))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all((result == expected).all() for result in results)


def test_without_a_compiler_the_steps_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.SWITCH, "0")
    fused._library.cache_clear()
    fused._compiled.cache_clear()
    try:
        data = encoded(IMAGE, quality=85)
        header = jpeg.read_header(data)
        assert header is not None
        out = np.zeros((40, 40, 3), np.uint8)
        assert not fused.crop_into(out, data, header, (10, 20, 110, 120))
        seconds = Encoded(data).crop_into(out, np.array([10.0, 20.0, 110.0, 120.0]))
        assert seconds > 0
        np.testing.assert_array_equal(out.astype(int), in_steps(data, (10, 20, 110, 120), 40))
    finally:
        fused._library.cache_clear()
        fused._compiled.cache_clear()
