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
    assert (got[0, :, :, 20:] == randaugment.FILL).all()
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
