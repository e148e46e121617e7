"""Each operation against Pillow's, and the compiled function against PyTorch's operations: equal in every bit."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from conveyor.data.transform import operations, randaugment
from conveyor.data.transform.augment import library
from conveyor.data.transform.operations import CODES, WIDTH, by_torch, change
from conveyor.data.transform.randaugment import AFFINE, OPERATIONS, RANDAUGMENT, TRIVIAL, Space, step
from conveyor.numerics.native import build

LEVELS = tuple(range(-30, 31, 3))
ENHANCERS = {
    "color": ImageEnhance.Color, "contrast": ImageEnhance.Contrast,
    "brightness": ImageEnhance.Brightness, "sharpness": ImageEnhance.Sharpness,
}  # fmt: skip


def pictures(height: int, width: int, channels: int = 3) -> torch.Tensor:
    """Noise, a gradient, one level, a dark image, a bright stripe."""
    generator = torch.Generator().manual_seed(height * width + channels)
    images = torch.randint(0, 256, (5, height, width, channels), generator=generator, dtype=torch.uint8)
    down, across = torch.arange(height).view(-1, 1, 1), torch.arange(width).view(1, -1, 1)
    images[1] = (3 * down + 2 * across + 40 * torch.arange(channels)).clamp_max(255).to(torch.uint8)
    images[2], images[3] = 77, images[3] // 8 + 60
    images[4, :, : width // 2] = 255
    return images


def planned(code: str, *values: float, images: int = 5) -> torch.Tensor:
    row = torch.tensor([CODES.index(code), *values, *[0.0] * (WIDTH - 1 - len(values))], dtype=torch.float64)
    return row.expand(images, 1, WIDTH)


def both(images: torch.Tensor, plan: torch.Tensor) -> torch.Tensor:
    """The result, the same from the compiled function, where there is one, and from PyTorch."""
    found = change(images, plan)
    assert torch.equal(found, by_torch(images, plan))
    return found


def one(name: str, images: torch.Tensor, signed: float, space: Space) -> torch.Tensor:
    chosen = torch.full((len(images),), OPERATIONS.index(name))
    strengths = torch.full((len(images),), signed, dtype=torch.float64)
    return both(images, step(chosen, strengths, space, tuple(images.shape[1:3]))[:, None])


@pytest.mark.parametrize("space", [TRIVIAL, RANDAUGMENT])
def test_colours_are_those_of_pillow(space: Space) -> None:
    images = pictures(37, 52)
    for level in LEVELS:
        share = level / 30
        for name in OPERATIONS[:9]:
            got = one(name, images, share, space)
            for image, found in zip(images, got, strict=True):
                picture = Image.fromarray(image.numpy())
                if name in ENHANCERS:
                    expected = ENHANCERS[name](picture).enhance(1 + space.blend * share)
                elif name == "posterize":
                    expected = ImageOps.posterize(picture, 8 - round(space.bits * abs(share)))
                elif name == "solarize":
                    expected = ImageOps.solarize(picture, space.solarize * (1 - abs(share)))
                else:
                    expected = getattr(ImageOps, name)(picture) if name != "identity" else picture
                np.testing.assert_array_equal(found.numpy(), np.asarray(expected), err_msg=f"{name} {level}")


@pytest.mark.parametrize(("height", "width"), [(64, 64), (40, 57)])
def test_trivialaugment_moves_as_pillow(height: int, width: int) -> None:
    images = pictures(height, width)
    for level in LEVELS:
        share = level / 30
        shear, shift = 0.99 * share, 32 * share
        matrices = {
            "shear-x": (1, shear, 0, 0, 1, 0), "shear-y": (1, 0, 0, shear, 1, 0),
            "translate-x": (1, 0, shift, 0, 1, 0), "translate-y": (1, 0, 0, 0, 1, shift),
        }  # fmt: skip
        for name in AFFINE:
            got = one(name, images, share, TRIVIAL)
            for image, found in zip(images, got, strict=True):
                picture = Image.fromarray(image.numpy())
                if name == "rotate":
                    expected = picture.rotate(135 * share, Image.Resampling.NEAREST)
                else:
                    form = Image.Transform.AFFINE
                    expected = picture.transform(picture.size, form, matrices[name], Image.Resampling.NEAREST)
                np.testing.assert_array_equal(found.numpy(), np.asarray(expected), err_msg=f"{name} {level}")


def test_randaugment_moves_about_the_centre_and_samples_bilinearly() -> None:
    images = pictures(48, 48)[:2]
    for name in AFFINE:
        for share in (-1.0, -0.3, 0.0, 0.7):
            got = one(name, images, share, RANDAUGMENT).float()
            chosen, amount = torch.tensor([AFFINE.index(name)]), torch.tensor([share], dtype=torch.float64)
            a, b, c, d, e, f = randaugment.matrix(chosen, amount, RANDAUGMENT, (48, 48))[0].tolist()
            theta = torch.tensor([[a, b, c / 24], [d, e, f / 24]]).expand(2, 2, 3)
            grid = torch.nn.functional.affine_grid(theta, [2, 3, 48, 48], align_corners=False)
            pixels = images.permute(0, 3, 1, 2).float() - 128
            expected = torch.nn.functional.grid_sample(pixels, grid, align_corners=False).permute(0, 2, 3, 1) + 128
            # Positions are cut to 1/256 of a pixel, so up to 1/256 of the two neighbours' difference in each direction.
            assert (got - expected).abs().max() <= 1 + 2 * 255 / 256, (name, share)
            if share == 0:
                assert torch.equal(got, images.float())
    angle = randaugment.matrix(torch.tensor([4]), torch.ones(1, dtype=torch.float64), RANDAUGMENT, (48, 48))[0]
    assert angle[3].item() == pytest.approx(0.5)


@pytest.mark.parametrize("share", [-0.5, -0.37, 0.0, 0.17, 0.5])
def test_hues_turn_as_in_the_standard_library(share: float) -> None:
    images = pictures(16, 16)
    got = both(images, planned("hue", share))
    for (red, green, blue), found in zip(images.view(-1, 3).tolist(), got.view(-1, 3).tolist(), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        assert found == pytest.approx(colorsys.hsv_to_rgb((hue + share) % 1, saturation, value), abs=0.501)


@pytest.mark.parametrize(
    ("height", "width", "channels"), [(1, 1, 3), (2, 9, 3), (224, 224, 3), (33, 20, 1), (9, 9, 4), (7, 5, 6)]
)
def test_the_compiled_function_and_pytorch_give_equal_bits(height: int, width: int, channels: int) -> None:
    """All operations at drawn strengths, three in a row, at every number of threads."""
    images = pictures(height, width, channels).repeat(24, 1, 1, 1)
    generator = torch.Generator().manual_seed(3)
    parts = []
    for space in (TRIVIAL, RANDAUGMENT, TRIVIAL):
        chosen = torch.randint(len(OPERATIONS), (len(images),), generator=generator)
        strengths = 2 * torch.rand(len(images), generator=generator, dtype=torch.float64) - 1
        parts.append(step(chosen, strengths, space, (height, width)))
    parts.insert(1, planned("hue", 0.21, images=len(images))[:, 0])
    plan = torch.stack(parts, 1)
    whole = both(images, plan)
    assert torch.equal(whole[7:11], change(images[7:11], plan[7:11])), "an image depends on itself alone"
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(change(images, plan), whole)
    finally:
        torch.set_num_threads(before)


def check_every_level(monkeypatch: pytest.MonkeyPatch, images: torch.Tensor, plan: torch.Tensor) -> None:
    """The compiled function of each level of instructions against PyTorch's operations."""
    expected = by_torch(images, plan)
    for level in build.levels_here():
        monkeypatch.setattr(build, "levels_here", lambda level=level: [level])
        library.cache_clear()
        assert torch.equal(change(images, plan), expected), level
    monkeypatch.undo()
    library.cache_clear()


@pytest.mark.skipif(library("augment") is None, reason="no kernels here")
@pytest.mark.parametrize("size", [(61, 45), (32, 32), (9, 21)])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_level_of_instructions_gives_equal_bits(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], channels: int
) -> None:
    images = pictures(*size, channels).repeat(30, 1, 1, 1)
    chosen = torch.arange(len(images)) % len(OPERATIONS)
    strengths = torch.linspace(-1, 1, len(images), dtype=torch.float64)
    rows = [step(chosen.roll(turn), strengths, space, size) for turn, space in enumerate((TRIVIAL, RANDAUGMENT))]
    check_every_level(monkeypatch, images, torch.stack([*rows, planned("hue", -0.3, images=len(images))[:, 0]], 1))


@pytest.mark.skipif(library("augment") is None, reason="no kernels here")
@pytest.mark.parametrize("size", [(32, 32), (19, 45), (5, 3), (1, 1)])
@pytest.mark.parametrize("channels", [1, 3])
def test_moves_along_rows(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], channels: int) -> None:
    """Rows that stay rows have a way of their own: by any fraction, to any row, a little and far outside."""
    images = pictures(*size, channels).repeat(40, 1, 1, 1)
    generator = torch.Generator().manual_seed(4)
    reach = torch.tensor([0, 2.0, 2 * size[1], 0, 2.0, 2 * size[0]])
    values = (torch.rand(len(images), 6, generator=generator) * 2 - 1) * reach * operations.ONE
    values[:, 0] = operations.ONE
    values[::3, 1], values[::4, 4] = 0, operations.ONE
    values[::2] = (values[::2] / operations.ONE).round() * operations.ONE  # no fractions
    plan = torch.zeros(len(images), 1, WIDTH, dtype=torch.float64)
    plan[:, 0, 1:7], plan[:, 0, 7] = values.floor(), 77
    for code in ("nearest", "bilinear"):
        plan[:, 0, 0] = CODES.index(code)
        check_every_level(monkeypatch, images, plan)


@pytest.mark.skipif(library("augment") is None, reason="no kernels here")
@pytest.mark.parametrize("code", ["color", "contrast", "brightness", "sharpness"])
def test_any_factor_is_that_of_pytorch(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Beyond 8 million a blended level does not fit 32 bits."""
    for factor in (1e5, 1e7, 1e9, 1e30):
        check_every_level(monkeypatch, pictures(19, 33), planned(code, factor))


def test_resized_images_are_rounded() -> None:
    images = torch.tensor([[[[254.6, -0.2, 255.3]]]])
    assert change(images, planned("identity", images=1)).flatten().tolist() == [255, 0, 255]
    assert operations.grey(torch.tensor([[[[1, 2]]]], dtype=torch.uint8)).item() == 2
