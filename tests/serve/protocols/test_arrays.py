import io
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from conveyor.infer.preprocessing import Preprocessing
from conveyor.serve.errors import Refused, TooLarge
from conveyor.serve.protocols.arrays import as_images, from_bytes, split_strings
from conveyor.serve.protocols.images import decode

SHAPE = (4, 4, 3)


def encoded(width: int, height: int, form: str = "PNG", mode: str = "RGB", **more: object) -> bytes:
    rng, buffer = np.random.default_rng(0), io.BytesIO()
    if mode == "I;16":
        image = Image.fromarray(rng.integers(0, 1 << 16, (height, width), dtype=np.uint16))
    else:
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)
    image.save(buffer, form, **more)
    return buffer.getvalue()


def test_numbers_of_any_type_become_bytes() -> None:
    values = np.arange(48).reshape(1, 4, 4, 3)
    for dtype in (np.uint8, np.int64, np.float32, np.float64, np.uint16):
        assert as_images(values.astype(dtype), SHAPE).tolist() == values.tolist()
    assert as_images(values + 0.3, SHAPE).tolist() == values.tolist(), "as a resized image has them"
    assert as_images(values[0].tolist(), SHAPE).shape == (1, *SHAPE)
    assert as_images(np.zeros((2, 4, 4)), (4, 4, 1)).shape == (2, 4, 4, 1)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.full((1, *SHAPE), 256), "0 to 255"),
        (np.full((1, *SHAPE), -1), "0 to 255"),
        (np.full((1, *SHAPE), np.nan), "finite"),
        (np.full((1, *SHAPE), 0.4), "fractions"),
        (np.full((1, *SHAPE), 0.4).tolist(), "fractions"),
        (np.zeros((1, 4, 4)), "shape"),
        (np.zeros((0, *SHAPE)), "shape"),
        ([[1, 2], [3]], "regular"),
        ("text", "numbers"),
        (None, "numbers"),
        ({"a": 1}, "numbers"),
        ([10**400], "numbers"),
        ([True], "numbers"),
    ],
)
def test_wrong_numbers_are_refused(values: object, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        as_images(values, SHAPE)


@pytest.mark.parametrize("wrap", [lambda texts: texts, lambda texts: [texts], lambda texts: [[0] * len(texts), texts]])
def test_texts_among_the_numbers_cost_no_memory(wrap: Callable[[list[object]], object]) -> None:
    values = wrap(["5" * 100_000, *["5"] * 500])
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="numbers"):
            as_images(values, SHAPE)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000, "room for the longest text in every place"
    finally:
        tracemalloc.stop()


def test_endless_nesting_is_refused() -> None:
    values: object = 1
    for _ in range(500):
        values = [values]
    with pytest.raises(Refused, match="dimensions"):
        as_images(values, SHAPE)


def test_raw_bytes_must_fit_their_shape() -> None:
    assert from_bytes(bytes(range(6)), "UINT8", [2, 3]).tolist() == [[0, 1, 2], [3, 4, 5]]
    for content, datatype, shape in (
        (b"123", "UINT8", [2, 2]),
        (b"", "FP32", [1]),
        (b"1", "BYTES", [1]),
        (b"", "UINT8", [0]),
    ):
        with pytest.raises(Refused):
            from_bytes(content, datatype, shape)
    for shape in ([-1], [1 << 40], [1] * 9, "11", [1.5], [True], None, [1 << 30, 1 << 30]):
        with pytest.raises(Refused):
            from_bytes(b"1", "UINT8", shape)  # type: ignore[arg-type]


@settings(max_examples=25)
@given(st.lists(st.binary(max_size=20), max_size=5), st.binary(max_size=3))
def test_strings_are_split_or_refused(parts: list[bytes], rest: bytes) -> None:
    joined = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    assert split_strings(joined, len(parts)) == parts
    if rest:
        with pytest.raises(Refused):
            split_strings(joined + rest, len(parts))
    if joined:
        with pytest.raises(Refused):
            split_strings(joined[:-1], len(parts))


class TestDecode:
    PREPROCESSING = Preprocessing(image_size=16, resize=18)

    @pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
    @pytest.mark.parametrize("size", [(40, 30), (20, 90), (5, 5), (16, 16)])
    def test_any_size_and_form_gives_the_models_shape(self, form: str, size: tuple[int, int]) -> None:
        assert decode(encoded(*size, form), self.PREPROCESSING, 10**6).shape == (16, 16, 3)

    @pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "LA", "I;16"])
    def test_colour_modes(self, mode: str) -> None:
        content = encoded(20, 20, mode=mode)
        assert Image.open(io.BytesIO(content)).mode == mode
        assert decode(content, self.PREPROCESSING, 10**6).shape == (16, 16, 3)
        grey = Preprocessing(image_size=8, channels=1, in_channels=1)
        assert decode(content, grey, 10**6).shape == (8, 8, 1)

    def test_sixteen_bits_are_scaled(self) -> None:
        values = np.full((20, 20), 32_896, np.uint16)
        values[:10] = 65_535
        buffer = io.BytesIO()
        Image.fromarray(values).save(buffer, "PNG")
        found = decode(buffer.getvalue(), Preprocessing(image_size=20, channels=1, in_channels=1), 10**6)
        assert (int(found[2, 5, 0]), int(found[17, 5, 0])) == (255, 128)

    def test_the_centre_is_taken(self) -> None:
        values = np.zeros((20, 60, 3), np.uint8)
        values[:, 20:40] = 200
        buffer = io.BytesIO()
        Image.fromarray(values).save(buffer, "PNG")
        assert (decode(buffer.getvalue(), Preprocessing(image_size=20), 10**6)[:, 1:-1] == 200).all()

    def test_a_telephones_sideways_photograph_is_turned(self) -> None:
        values = np.zeros((16, 16, 3), np.uint8)
        values[:8] = 255
        image, buffer = Image.fromarray(values), io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6
        image.save(buffer, "PNG", exif=exif)
        turned = decode(buffer.getvalue(), Preprocessing(image_size=16), 10**6)
        assert turned[:, 8:].mean() == 255
        assert turned[:, :8].mean() == 0

    @pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
    @pytest.mark.parametrize(
        ("exif", "turned"),
        [
            ("4d4d002a000000", False),
            ("4d4d002a000000080002010f0003000000010006000001120003000000010006000000000000", True),
            (
                (
                    "4d4d002a00000008000401030002000000060000003e011200030000000100060000011a0005000000010000004487690004"
                    "000000010000004c000000006d616b6572000000004800000001000190030002000000050000005e000000003230323000"
                ),
                True,
            ),
        ],
        ids=["cut off", "whole", "damaged behind the orientation"],
    )
    def test_damaged_notes_beside_the_pixels_do_not_matter(self, form: str, exif: str, turned: bool) -> None:
        values = np.zeros((16, 16, 3), np.uint8)
        values[:8] = 255
        buffer = io.BytesIO()
        Image.fromarray(values).save(buffer, form, exif=b"Exif\0\0" + bytes.fromhex(exif))
        found = decode(buffer.getvalue(), Preprocessing(image_size=16), 10**6)
        bright = found[:, 8:] if turned else found[:8]
        assert bright.mean() > 250

    def test_a_bomb_is_refused_before_it_is_decoded(self) -> None:
        with pytest.raises(TooLarge, match="at most 1000"):
            decode(encoded(100, 100), self.PREPROCESSING, 1000)

    def test_a_huge_header_is_refused(self) -> None:
        content = bytearray(encoded(10, 10))
        content[16:24] = (60_000).to_bytes(4, "big") * 2  # width and height in the PNG header
        with pytest.raises(Refused):
            decode(bytes(content), self.PREPROCESSING, 50_000_000)

    def test_cut_off_and_foreign_content_is_refused(self) -> None:
        whole = encoded(200, 200, "JPEG")
        for content in (whole[: len(whole) // 2], whole[:10], b"", b"hello", b"%PDF-1.4", b"\x00" * 100):
            with pytest.raises(Refused):
                decode(content, self.PREPROCESSING, 10**6)

    @settings(max_examples=40)
    @given(st.data())
    def test_damaged_bytes_are_decoded_or_refused_never_worse(self, data: st.DataObject) -> None:
        content = bytearray(encoded(24, 24, data.draw(st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"]))))
        for _ in range(data.draw(st.integers(1, 8))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        try:
            assert decode(bytes(content), self.PREPROCESSING, 10**6).shape == (16, 16, 3)
        except Refused:
            pass
