"""Each operation of RandAugment against Pillow's, and its purity."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from conveyor.data.transform import randaugment
from conveyor.data.transform.randaugment import AFFINE, COLOUR, OPERATIONS, affine

PIXELS = torch.randint(20, 200, (2, 3, 96, 96), generator=torch.Generator().manual_seed(0)).float()


def pillow(index: int) -> Image.Image:
    return Image.fromarray(PIXELS[index].permute(1, 2, 0).numpy().astype(np.uint8))


def signed(value: float) -> torch.Tensor:
    return torch.full((2, 1, 1, 1), value)


@pytest.mark.parametrize("strength", [-0.6, 0.5])
@pytest.mark.parametrize(
    ("name", "enhancer"),
    [
        ("color", ImageEnhance.Color),
        ("contrast", ImageEnhance.Contrast),
        ("brightness", ImageEnhance.Brightness),
        ("sharpness", ImageEnhance.Sharpness),
    ],
)
def test_enhancements_equal_those_of_pillow(name: str, enhancer: type, strength: float) -> None:
    got = COLOUR[name](PIXELS, signed(strength))
    for i in range(2):
        expected = np.asarray(enhancer(pillow(i)).enhance(1 + 0.9 * strength)).astype(float)
        assert np.abs(got[i].permute(1, 2, 0).numpy() - expected).max() <= 2.5


def test_histogram_operations_equal_those_of_pillow() -> None:
    for i in range(2):
        for name, reference in (("autocontrast", ImageOps.autocontrast), ("equalize", ImageOps.equalize)):
            got = COLOUR[name](PIXELS, signed(0.3))[i].permute(1, 2, 0).numpy()
            difference = np.abs(got - np.asarray(reference(pillow(i))).astype(float))
            assert difference.max() <= 1
        got = COLOUR["posterize"](PIXELS, signed(0.5))[i].permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(got, np.asarray(ImageOps.posterize(pillow(i), 6)))
        got = COLOUR["solarize"](PIXELS, signed(0.5))[i].permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(got, np.asarray(ImageOps.solarize(pillow(i), 128)))


def test_uniform_images_survive_histogram_operations() -> None:
    flat = torch.full((1, 3, 5, 5), 90.0)
    for name in ("autocontrast", "equalize"):
        assert torch.equal(COLOUR[name](flat, signed(0.3)[:1]), flat)


def test_no_strength_moves_nothing() -> None:
    for which in range(5):
        got = affine(PIXELS, torch.full((2,), which), torch.zeros(2))
        torch.testing.assert_close(got, PIXELS, rtol=0, atol=1e-2)


def test_translation_and_rotation_move_as_far_as_they_say() -> None:
    pixels = 0.45 * 0.5 * 24
    smooth = torch.arange(24.0).view(1, 1, 1, 24).expand(1, 3, 24, 24)
    got = affine(smooth, torch.tensor([2]), torch.tensor([0.5]))
    assert got[0, 0, 12, 5].item() == pytest.approx(5 + pixels, abs=0.01)
    assert (got[0, :, :, 20:] == randaugment.RANDAUGMENT.fill).all()
    turned = affine(smooth, torch.tensor([4]), torch.tensor([1.0]))
    radians = np.deg2rad(30)
    assert turned[0, 0, 12, 15].item() == pytest.approx(11.5 + 3.5 * np.cos(radians) - 0.5 * np.sin(radians), abs=0.3)


def test_every_operation_is_drawn_and_depends_on_the_sample_alone() -> None:
    images = torch.randint(0, 256, (40, 16, 16, 3), dtype=torch.uint8)
    whole = randaugment.randaugment(images, 0, 3, torch.arange(40), operations=2, magnitude=9)
    part = randaugment.randaugment(images[10:20], 0, 3, torch.arange(10, 20), operations=2, magnitude=9)
    torch.testing.assert_close(whole[10:20], part, rtol=0, atol=1e-3)
    other = randaugment.randaugment(images, 0, 4, torch.arange(40), operations=2, magnitude=9)
    assert (whole != other).any()
    assert whole.min() >= -1e-3
    assert whole.max() <= 255.001
    assert len(OPERATIONS) == 9 + len(AFFINE)


def trivially(name: str, level: int, sign: int = 1) -> np.ndarray:
    """The first image through one operation of TrivialAugment at one of its 31 strengths, [H, W, C]."""
    chosen = torch.tensor([OPERATIONS.index(name)])
    image = PIXELS[:1].permute(0, 2, 3, 1).to(torch.uint8)
    got = randaugment.apply(image, chosen, torch.tensor([sign * level / 30]), randaugment.TRIVIAL, torch.uint8)
    return got[0].numpy().astype(float)


@pytest.mark.parametrize(("level", "sign"), [(3, 1), (17, -1), (30, 1)])
def test_trivialaugment_reaches_as_far_as_published(level: int, sign: int) -> None:
    """Each operation against Pillow's with the strengths of the paper's wide space."""
    picture, share = pillow(0), sign * level / 30
    for name, enhancer in (
        ("color", ImageEnhance.Color),
        ("contrast", ImageEnhance.Contrast),
        ("brightness", ImageEnhance.Brightness),
        ("sharpness", ImageEnhance.Sharpness),
    ):
        expected = np.asarray(enhancer(picture).enhance(1 + 0.99 * share)).astype(float)
        assert np.abs(trivially(name, level, sign) - expected).max() <= 2.5, name
    np.testing.assert_array_equal(
        trivially("posterize", level), np.asarray(ImageOps.posterize(picture, 8 - round(level / 5)))
    )
    np.testing.assert_array_equal(
        trivially("solarize", level), np.asarray(ImageOps.solarize(picture, 255 - 8.5 * level))
    )


@pytest.mark.parametrize("share", [-0.8, 0.1, 1.0])
def test_trivialaugment_moves_as_published(share: float) -> None:
    shear, shift, angle = 0.99 * share, 32 * share, 135 * share
    smooth = (
        torch.stack(torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")).sum(0).expand(1, 3, 96, 96)
    )
    picture = Image.fromarray(smooth[0, 0].numpy().astype(np.uint8))
    matrices = {
        "shear-x": (1, shear, 0, 0, 1, 0),
        "shear-y": (1, 0, 0, shear, 1, 0),
        "translate-x": (1, 0, shift, 0, 1, 0),
        "translate-y": (1, 0, 0, 0, 1, shift),
    }
    moved = {
        name: picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)
        for name, matrix in matrices.items()
    }
    moved["rotate"] = picture.rotate(angle, Image.Resampling.NEAREST)
    for number, name in enumerate(AFFINE):
        got = affine(smooth, torch.tensor([number]), torch.tensor([share]), randaugment.TRIVIAL)[0, 0].numpy()
        expected = np.asarray(moved[name]).astype(float)
        # Ties between two pixels aside.
        assert (got != expected).mean() < 0.01, name


def test_every_strength_of_trivialaugment_is_drawn() -> None:
    images = torch.randint(0, 256, (400, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    whole = randaugment.trivialaugment(images, 0, 3, torch.arange(400))
    part = randaugment.trivialaugment(images[100:150], 0, 3, torch.arange(100, 150))
    assert torch.equal(whole[100:150], part)
    changed = (whole != images).flatten(1).any(1)
    assert 0.6 < changed.float().mean() < 1
    bright = torch.full((15000, 1, 1, 3), 100, dtype=torch.uint8)
    found = randaugment.trivialaugment(bright, 0, 0, torch.arange(15000))[:, 0, 0, 0].unique()
    factors = {int(100 * (1 + sign * 0.99 * level / 30)) for level in range(31) for sign in (1, -1)}
    got = set(found.tolist())
    assert all({factor - 1, factor} & got for factor in factors), "all strengths, cut to whole numbers"


@pytest.mark.parametrize("space", [randaugment.TRIVIAL, randaugment.RANDAUGMENT])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_tables_of_levels_change_no_bit(space: randaugment.Space, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (4, 40, 40, 3), generator=generator, dtype=torch.uint8)
    images[2], images[3] = 77, images[3] // 8 + 60
    planes, by_table = images.permute(0, 3, 1, 2).contiguous().float(), 0
    for number, name in enumerate(OPERATIONS[1:9], start=1):
        for strength in (-1.0, -0.4, 0.0, 0.3, 1.0):
            amounts = torch.full((4,), strength)
            got = randaugment.apply(images, torch.full((4,), number), amounts, space, dtype)
            plain = COLOUR[name](planes, amounts.view(-1, 1, 1, 1), space).to(dtype).permute(0, 2, 3, 1)
            assert torch.equal(got, plain), (name, strength)
            by_table += randaugment.by_table(name, images, amounts, space, dtype) is not None
    assert by_table >= 25
