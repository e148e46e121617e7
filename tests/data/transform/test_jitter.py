"""Colour jitter against the standard library's and Pillow's definitions, and its purity."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from conveyor.data.transform.jitter import ORDERS, change, jitter
from conveyor.errors import UserError
from conveyor.options.units import jitter_reaches

IMAGES = torch.randint(0, 256, (6, 12, 12, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def nchw(images: torch.Tensor) -> torch.Tensor:
    return images.permute(0, 3, 1, 2).float()


def amount(value: float) -> torch.Tensor:
    return torch.full((len(IMAGES), 1, 1, 1), value)


@pytest.mark.parametrize("share", [-0.4, 0.0, 0.17, 0.5])
def test_hues_turn_as_in_the_standard_library(share: float) -> None:
    got = change(nchw(IMAGES), "hue", amount(share)).permute(0, 2, 3, 1)
    for (red, green, blue), found in zip(IMAGES.view(-1, 3).tolist(), got.reshape(-1, 3).tolist(), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        assert found == pytest.approx(colorsys.hsv_to_rgb((hue + share) % 1, saturation, value), abs=1e-3)


@pytest.mark.parametrize("factor", [0.0, 0.6, 1.4])
def test_the_other_parts_are_those_of_pillow(factor: float) -> None:
    kinds = {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast, "saturation": ImageEnhance.Color}
    for part, enhancer in kinds.items():
        got = change(nchw(IMAGES), part, amount(factor))[2].permute(1, 2, 0).numpy()
        expected = np.asarray(enhancer(Image.fromarray(IMAGES[2].numpy())).enhance(factor)).astype(float)
        assert np.abs(got - expected).max() <= 2, part


def test_parts_come_in_the_order_that_was_drawn() -> None:
    from conveyor.numerics import keyed

    reach = (0.4, 0.3, 0.2, 0.1)
    got = jitter(IMAGES, 5, 2, torch.arange(6), reach)
    draws = keyed.uniform(5, "jitter", 2, torch.arange(6), count=5)
    for sample in range(6):
        pixels = nchw(IMAGES[sample : sample + 1])
        for part in ORDERS[int(draws[sample, 4] * 24)].tolist():
            u = draws[sample, part].item()
            value = -0.1 + u * 0.2 if part == 3 else 1 - reach[part] + u * 2 * reach[part]
            name = ("brightness", "contrast", "saturation", "hue")[part]
            pixels = change(pixels, name, torch.tensor(value).view(1, 1, 1, 1))
        torch.testing.assert_close(got[sample], pixels[0].permute(1, 2, 0), rtol=0, atol=1e-2)


def test_an_image_depends_on_its_sample_alone() -> None:
    whole = jitter(IMAGES, 0, 1, torch.arange(6), (0.4,))
    assert torch.equal(whole[2:4], jitter(IMAGES[2:4], 0, 1, torch.arange(2, 4), (0.4,)))
    assert not torch.equal(whole, jitter(IMAGES, 0, 2, torch.arange(6), (0.4,)))
    grey = torch.full((2, 4, 4, 1), 90, dtype=torch.uint8)
    assert jitter(grey, 0, 0, torch.arange(2), (0.4, 0.4, 0.4, 0.5)).shape == grey.shape


def test_numbers_that_mean_nothing_are_refused() -> None:
    assert jitter_reaches(()) == (0, 0, 0, 0)
    assert jitter_reaches((0.4,)) == (0.4, 0.4, 0.4, 0)
    for given in ((0.1, 0.2), (0.1, 0.1, 0.1, 0.6)):
        with pytest.raises(UserError, match="one number"):
            jitter_reaches(given)
