"""Shifting, mirroring and normalising in one pass: to the bit what the separate operations give."""

import shutil

import pytest
import torch

from conveyor.data.transform import augment, erasing, geometry, jitter
from conveyor.data.transform.normalize import Normalization
from conveyor.data.transform.operations import by_torch
from conveyor.data.transform.randaugment import randaugment, trivialaugment
from conveyor.numerics.native import build

compiled = pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler")


@compiled
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(("height", "width", "padding"), [(32, 32, 4), (7, 11, 3), (5, 3, 2), (1, 9, 0)])
@pytest.mark.parametrize("fill", ["zero", "reflect"])
def test_one_pass_equals_the_steps(channels: int, height: int, width: int, padding: int, fill: str) -> None:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (40, height, width, channels), dtype=torch.uint8, generator=generator)
    offsets = torch.randint(0, 2 * padding + 1, (40, 2), generator=generator)
    mask = torch.rand(40, generator=generator) < 0.5
    normal = Normalization.named("imagenet", channels)
    assert augment.applies(images, normal)
    padded = geometry.pad(images, padding, fill)
    for moved, mirrored in ((offsets, mask), (offsets, None), (None, mask), (None, None)):
        expected = images
        if moved is not None:
            expected = geometry.windows_by_torch(padded, moved[:, 0], moved[:, 1], mirrored, height, width)
        elif mirrored is not None:
            expected = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(2), images)
        got = augment.augment(images, normal, moved, padding, fill, mirrored)
        assert torch.equal(got, normal(expected))
        assert torch.equal(augment.augment(images, None, moved, padding, fill, mirrored), expected)


@compiled
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (5, 3), (17, 40), (1, 1)])
def test_a_plan_and_boxes_in_the_same_pass(channels: int, height: int, width: int) -> None:
    samples, size = torch.arange(150), (height, width)
    generator = torch.Generator().manual_seed(7)
    images = torch.randint(0, 256, (150, *size, channels), dtype=torch.uint8, generator=generator)
    images[::3] //= 5
    offsets, mask = torch.randint(0, 3, (150, 2), generator=generator), torch.rand(150, generator=generator) < 0.5
    plans = [
        jitter.jitter(1, 0, samples, (0.8, 0.8, 0.8, 0.3)), trivialaugment(1, 0, samples, size),
        randaugment(1, 0, samples, size, operations=3, magnitude=20.0),
    ]  # fmt: skip
    plans[0][:40] = 0  # nothing happens to some
    boxes, normal = erasing.draw(1, 0, samples, 0.5, *size), Normalization.named("imagenet", channels)
    moved = augment.augment(images, None, offsets, 1, "zero", mask)
    for plan in (*plans, torch.cat(plans, 1)):
        expected = erasing.erase(normal(by_torch(moved, plan)), boxes)
        assert torch.equal(augment.augment(images, normal, offsets, 1, "zero", mask, plan, boxes), expected)
        assert torch.equal(augment.augment(images, None, plan=plan), by_torch(images, plan))


@compiled
def test_padding_wider_than_the_image() -> None:
    images = torch.full((2, 3, 3, 1), 9, dtype=torch.uint8)
    normal = Normalization.named("none", 1)
    offsets = torch.tensor([[0, 0], [10, 4]])
    got = augment.augment(images, normal, offsets, 5, "zero", None)
    assert got[0].sum() == 0
    assert got[1].sum() == 0
    with pytest.raises(ValueError, match="mirrored"):
        augment.augment(images, normal, offsets, 5, "reflect", None)


def test_other_images_take_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    normal = Normalization.named("imagenet", 3)
    images = torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    assert not augment.applies(images.float(), normal)
    assert not augment.applies(images, Normalization.named("per-image", 3))
    assert not augment.applies(images.permute(0, 2, 1, 3)[:, 1:], normal)
    assert not augment.applies(torch.zeros(2, 4, 4, 1, dtype=torch.uint8), normal)
    monkeypatch.setenv(build.SWITCH, "0")
    augment.library.cache_clear()
    try:
        assert not augment.applies(images, normal)
    finally:
        augment.library.cache_clear()


def test_what_is_looked_up_for_an_epoch_is_what_is_computed_for_a_batch() -> None:
    def compute(samples: torch.Tensor, epoch: int) -> geometry.Rows:
        draws = geometry.draw(5, epoch, samples)
        return geometry.shifts(draws, 4), draws[:, 2] < 0.5

    looked_up = geometry.PerEpoch(compute, 100)
    for epoch in (0, 1, 0, 2, 1):
        samples = torch.tensor([3, 99, 0, 3])
        for got, expected in zip(looked_up(samples, epoch), compute(samples, epoch), strict=True):
            assert torch.equal(got, expected)
    beyond = torch.tensor([5, 100, -1])
    assert torch.equal(looked_up(beyond, 0)[0], compute(beyond, 0)[0])
