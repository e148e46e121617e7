"""Decoding crops: the same pixels as a full decoding, odd files, damaged files."""

import io
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.data.photos import encoded, picture

from conveyor.data.photo import jpeg
from conveyor.data.photo.decode import BadImageError, Encoded, whole_box
from conveyor.data.photo.resize import resize_into

IMAGE = picture(200, 260)


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize(
    "box", [(0, 0, 40, 30), (100, 50, 180, 121), (13, 7, 259, 200), (0, 199, 1, 200), (30, 0, 90, 16)]
)
def test_a_crop_equals_the_same_part_of_a_full_decoding(subsampling: int, box: tuple[int, int, int, int]) -> None:
    data = encoded(IMAGE, quality=85, subsampling=subsampling)
    header = jpeg.read_header(data)
    assert header is not None
    assert (header.height, header.width, header.components) == (200, 260, 3)
    assert header.height_at
    left, top, right, bottom = box
    got = jpeg.decode_crop(data, header, box, 224, grey=False)
    np.testing.assert_array_equal(got, simplejpeg.decode_jpeg(data)[top:bottom, left:right])
    np.testing.assert_allclose(got, np.asarray(Image.open(io.BytesIO(data)))[top:bottom, left:right], atol=3)


def test_restart_markers_and_other_segments() -> None:
    data = encoded(IMAGE, quality=85, restart_marker_rows=1, comment=b"hello", exif=b"Exif\0\0nonsense")
    header = jpeg.read_header(data)
    assert header is not None
    got = jpeg.decode_crop(data, header, (10, 20, 60, 70), 224, grey=False)
    np.testing.assert_array_equal(got, simplejpeg.decode_jpeg(data)[20:70, 10:60])


@pytest.mark.parametrize(("size", "scale"), [(224, 1), (100, 2), (50, 4), (25, 8), (101, 1)])
def test_large_crops_are_decoded_smaller(size: int, scale: int) -> None:
    data = encoded(IMAGE, quality=90)
    header = jpeg.read_header(data)
    assert header is not None
    got = jpeg.decode_crop(data, header, (8, 0, 248, 200), size, grey=False)
    assert got.shape == (200 // scale, 240 // scale, 3)
    means = IMAGE[:, 8:248].reshape(200 // scale, scale, 240 // scale, scale, 3).mean((1, 3))
    assert np.abs(got - means).mean() < 8


def test_progressive_files_are_not_cut() -> None:
    data = encoded(IMAGE, progressive=True)
    header = jpeg.read_header(data)
    assert header is not None
    assert header.height_at == 0
    got = jpeg.decode_crop(data, header, (0, 0, 50, 50), 224, grey=False)
    np.testing.assert_array_equal(got, simplejpeg.decode_jpeg(data)[:50, :50])


WHOLE = np.array([0.0, 0.0, 260.0, 200.0])


@pytest.mark.parametrize(
    ("data", "tolerance"),
    [
        (encoded(IMAGE, "PNG"), 0),
        (encoded(IMAGE, "BMP"), 0),
        (encoded(IMAGE, "GIF"), 60),
        (encoded(IMAGE, mode="L"), 45),
        (encoded(IMAGE, mode="CMYK", quality=95), 40),
        (encoded(IMAGE, "PNG", mode="P"), 60),
        (encoded(IMAGE, "PNG", mode="RGBA"), 0),
        (encoded(IMAGE, "PNG", mode="L"), 45),
        (encoded(IMAGE, "PNG", mode="1"), 130),
        (encoded(IMAGE, "WEBP", lossless=True), 0),
        (encoded(IMAGE, quality=95) + b"trailing bytes", 10),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_odd_files_are_understood(data: bytes, tolerance: float, channels: int) -> None:
    image = Encoded(data)
    assert (image.height, image.width) == (200, 260)
    got = image.crop(WHOLE, 224, channels)
    assert got.shape == (200, 260, channels)
    expected = IMAGE if channels == 3 else np.asarray(Image.fromarray(IMAGE).convert("L"))[..., None]
    assert np.abs(got.astype(int) - expected).mean() <= tolerance + (channels == 1)


def test_sixteen_bit_images_keep_their_high_byte() -> None:
    values = (np.arange(64, dtype=np.uint16).reshape(8, 8)) * 1000
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    got = Encoded(buffer.getvalue()).crop(np.array([0.0, 0.0, 8.0, 8.0]), 8, 3)
    np.testing.assert_array_equal(got[..., 0], values >> 8)


@pytest.mark.parametrize(("scale", "bad"), [(1.0, False), (1 / 255, True), (3.0, True), (-1.0, True)])
def test_fractions_are_levels_from_0_to_255(scale: float, bad: bool) -> None:
    """Pillow clips them: a picture in 0..1 would be black, one beyond 255 white."""
    levels = np.linspace(0, 255, 48, dtype=np.float32).reshape(6, 8)
    content = encoded(levels * np.float32(scale), "TIFF")
    if bad:
        with pytest.raises(BadImageError, match="its pixels are fractions from"):
            Encoded(content).pixels(1)
    else:
        assert Encoded(content).pixels(1)[..., 0].tolist() == levels.astype(np.uint8).tolist()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no image"),
        (b"this is text", "no image"),
        (b"\xff\xd8", "no image"),
        (encoded(IMAGE)[:3000], "truncated"),
        (encoded(IMAGE, "PNG")[:3000], "truncated"),
        (encoded(IMAGE, progressive=True)[:900], "truncated"),
    ],
)
def test_damaged_files_are_bad_images(data: bytes, reason: str) -> None:
    with pytest.raises(BadImageError, match=reason):
        Encoded(data).crop(WHOLE, 224, 3)


def test_a_claim_of_gigantic_size_is_refused() -> None:
    data = bytearray(encoded(IMAGE))
    header = jpeg.read_header(bytes(data))
    assert header is not None
    data[header.height_at : header.height_at + 4] = b"\xff\xdc\xff\xdc"
    with pytest.raises(BadImageError, match="65500"):
        Encoded(bytes(data))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_damage_gives_pixels_or_a_reason(data: st.DataObject) -> None:
    content = bytearray(encoded(picture(40, 56), quality=70))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        image = Encoded(bytes(content))
        got = image.crop(np.array([1.0, 2.0, image.width - 1.0, image.height - 1.0]), 16, 3)
    except BadImageError as error:
        outcome = str(error)
    else:
        outcome = f"{got.ndim} dimensions of {got.dtype}"
    assert outcome
    assert outcome == "3 dimensions of uint8" or "dimensions" not in outcome


def test_resizing_is_that_of_pillow() -> None:
    for height, width in ((200, 260), (100, 90), (224, 224), (37, 41)):
        image = picture(height, width)
        out = np.zeros((64, 64, 3), np.uint8)
        resize_into(out, image)
        expected = np.asarray(Image.fromarray(image).resize((64, 64), Image.Resampling.BILINEAR))
        assert np.abs(out.astype(int) - expected).max() <= 1


def test_resizing_writes_into_the_batch_and_nowhere_else() -> None:
    batch = np.full((3, 16, 16, 3), 9, np.uint8)
    resize_into(batch[1], picture(40, 40)[5:30, 3:33])
    assert (batch[0] == 9).all()
    assert (batch[2] == 9).all()
    assert (batch[1] != 9).any()
    same = picture(16, 16)
    resize_into(batch[2], same)
    np.testing.assert_array_equal(batch[2], same)


@given(st.floats(-5, 40), st.floats(-5, 40), st.floats(-5, 40), st.floats(-5, 40))
def test_boxes_are_rounded_to_at_least_one_pixel_inside(a: float, b: float, c: float, d: float) -> None:
    left, top, right, bottom = whole_box(np.array([a, b, c, d]), 30, 20)
    assert 0 <= left < right <= 30
    assert 0 <= top < bottom <= 20


def test_headers_that_lie_are_refused(tmp_path: Path) -> None:
    good = encoded(IMAGE)
    for cut in range(2, 200, 7):
        assert jpeg.read_header(good[:cut]) is None
    assert jpeg.read_header(b"\xff\xd8\xff\xc0\x00\x01") is None
    assert jpeg.read_header(b"\xff\xd8\x00" * 10) is None
