"""One preparation: a file gives the same pixels in validation, calibration, prediction and in a request, compiled or not."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps
from tests.data.photos import encoded, picture

from conveyor.data.open import open_dataset
from conveyor.data.photo import fused
from conveyor.data.photo.decode import Encoded
from conveyor.infer import accuracy
from conveyor.infer.load import from_options
from conveyor.infer.preprocessing import Preprocessing
from conveyor.numerics.native import build
from conveyor.options import Options
from conveyor.serve.protocols.images import decode

SIZES = (24, 48, 90, 150)
"""Of a box of 192 pixels: decoded at 1/8, 1/4, 1/2 and 1/1 of its size."""
PHOTO = picture(220, 300, seed=3)
DEEP = PHOTO[..., 0].astype(np.uint16) * 257


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def deep(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(DEEP).save(buffer, kind)
    return buffer.getvalue()


def photographs() -> dict[str, bytes]:
    found = {
        "palette.png": encoded(PHOTO, "PNG", mode="P"),
        "alpha.png": encoded(PHOTO, "PNG", mode="RGBA"),
        "grey_alpha.png": encoded(PHOTO, "PNG", mode="LA"),
        "grey.png": encoded(PHOTO, "PNG", mode="L"),
        "bits16.png": deep("PNG"),
        "bits16.tif": deep("TIFF"),
        "palette.gif": encoded(PHOTO, "GIF", mode="P"),
        "plain.bmp": encoded(PHOTO, "BMP"),
        "plain.ppm": encoded(PHOTO, "PPM"),
        "trailing.jpg": encoded(PHOTO) + bytes(500),
    }
    for number in range(1, 9):
        exif = turned(number)
        found |= {
            f"420_{number}.jpg": encoded(PHOTO, quality=90, subsampling=2, exif=exif),
            f"444_{number}.jpg": encoded(PHOTO, quality=90, subsampling=0, exif=exif),
            f"grey_{number}.jpg": encoded(PHOTO, mode="L", exif=exif),
            f"cmyk_{number}.jpg": encoded(PHOTO, mode="CMYK", exif=exif),
            f"progressive_{number}.jpg": encoded(PHOTO, progressive=True, exif=exif),
            f"plain_{number}.png": encoded(PHOTO, "PNG", exif=exif),
            f"lossy_{number}.webp": encoded(PHOTO, "WEBP", exif=exif),
            f"lzw_{number}.tif": encoded(PHOTO, "TIFF", compression="tiff_lzw", exif=exif),
        }
    return found


FILES = photographs()
NAMES = sorted(FILES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photographs")
    for split in ("train", "validation"):
        for label in ("ape", "bee"):
            (root / split / label).mkdir(parents=True)
        for name, data in FILES.items():
            (root / split / "ape" / name).write_bytes(data)
        (root / split / "bee" / "one.png").write_bytes(FILES["grey.png"])
    return root


@pytest.fixture(params=["compiled", "in steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "in steps":
        monkeypatch.setenv(build.SWITCH, "0")
    for cached in (fused._compiled, fused._library):
        cached.cache_clear()
    yield request.param
    for cached in (fused._compiled, fused._library):
        cached.cache_clear()


def options_for(folder: Path, **changed: object) -> Options:
    return Options.from_mapping({"data_dir": str(folder), "data_cache": "off", **changed})


def validated(options: Options, size: int, channels: int) -> NDArray[np.uint8]:
    dataset = open_dataset(options, "validation", size, channels)
    return dataset.read(np.arange(len(NAMES)), 0).images.numpy()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_request_gives_the_pixels_of_validation_and_calibration(
    folder: Path, way: str, size: int, channels: int
) -> None:
    options = options_for(folder, image_size=size, progressive_image_size=["0:20"])
    preprocessing = Preprocessing(
        image_size=size, channels=channels, in_channels=channels, resize=int(size * 256 / 224)
    )
    expected = validated(options, size, channels)
    calibration = accuracy.sample(options, "train", preprocessing, 10**6).images
    assert len(expected) == len(NAMES) == len(calibration) - 1
    for name, seen, calibrated in zip(NAMES, expected, calibration, strict=False):
        np.testing.assert_array_equal(decode(FILES[name], preprocessing, 10**6), seen, err_msg=name)
        np.testing.assert_array_equal(calibrated, seen, err_msg=name)


@pytest.mark.parametrize("size", SIZES)
def test_a_machine_without_a_compiler_gives_the_same_pixels(
    folder: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocessing = Preprocessing(image_size=size, resize=int(size * 256 / 224))
    compiled = [decode(FILES[name], preprocessing, 10**6) for name in NAMES]
    monkeypatch.setattr(fused, "library", lambda: None)
    monkeypatch.setattr(fused, "_compiled", lambda: None)
    for name, expected in zip(NAMES, compiled, strict=True):
        np.testing.assert_array_equal(decode(FILES[name], preprocessing, 10**6), expected, err_msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_upright(name: str) -> None:
    """Against Pillow, which turns files too; at full size, so that only its decoder is between us."""
    with Image.open(io.BytesIO(FILES[name])) as opened:
        opened.load()
        expected = ImageOps.exif_transpose(opened)
    values = np.asarray(expected) >> 8 if expected.mode.startswith("I") else np.asarray(expected.convert("RGB"))
    got = Encoded(FILES[name]).pixels(3).astype(int)
    assert got.shape[:2] == values.shape[:2]
    assert np.abs(got - values.reshape(*got.shape[:2], -1)).max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_crop_is_chosen_in_the_upright_picture(kind: str, orientation: int) -> None:
    data = encoded(PHOTO, kind, exif=turned(orientation))
    image = Encoded(data)
    box = (17.0, 31.0, 81.0, 95.0)
    out = np.empty((64, 64, 3), np.uint8)
    image.crop_into(out, box)
    np.testing.assert_array_equal(out, Encoded(data).pixels(3)[31:95, 17:81])
    np.testing.assert_array_equal(out, image.crop(box, 64, 3))


def test_the_resize_option_reaches_requests(folder: Path) -> None:
    options = options_for(folder, image_size=48, validation_resize=60, model="resnet18")
    preprocessing = from_options(options, "photographs").preprocessing
    assert preprocessing.resize == 60
    for name, seen in zip(NAMES, validated(options, 48, 3), strict=True):
        np.testing.assert_array_equal(decode(FILES[name], preprocessing, 10**6), seen, err_msg=name)


@pytest.mark.parametrize("name", ["420_1.jpg", "444_6.jpg", "plain_3.png", "grey_8.jpg", "cmyk_1.jpg"])
def test_bicubic_acts_alike_in_validation_and_in_requests(folder: Path, name: str) -> None:
    """And is Pillow's cubic filter on the whole photograph, not on one that the decoder has reduced."""
    options = options_for(folder, interpolation="bicubic", image_size=48)
    preprocessing = from_options(options.replace(model="resnet8"), "x").preprocessing
    assert preprocessing.interpolation == "bicubic"
    seen = decode(FILES[name], preprocessing, 1 << 30)
    dataset = open_dataset(options, "validation", 48, 3)
    number = sorted(NAMES).index(name)
    assert np.array_equal(dataset.read(np.array([number]), 0).images[0].numpy(), seen)
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(FILES[name]))).convert("RGB")
    side = min(image.size) * 48 / preprocessing.resize
    box = [
        round(number)
        for number in (
            (image.width - side) / 2,
            (image.height - side) / 2,
            (image.width + side) / 2,
            (image.height + side) / 2,
        )
    ]
    wanted = np.asarray(image.crop(box).resize((48, 48), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(wanted - seen).max() <= 2
    bilinear = decode(
        FILES[name], from_options(options.replace(model="resnet8", interpolation=None), "x").preprocessing, 1 << 30
    )
    assert not np.array_equal(seen, bilinear)
