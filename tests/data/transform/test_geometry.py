"""Batched crops and flips against the same thing done image by image."""

import numpy as np
import pytest
import torch

from conveyor.data.photo.crops import CropRule
from conveyor.data.transform import geometry
from conveyor.options.data import DataOptions

IMAGES = torch.randint(0, 256, (16, 9, 7, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
SAMPLES = torch.arange(100, 116)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
def test_shift_and_flip(dtype: torch.dtype, channels: int) -> None:
    images = IMAGES[..., :channels].to(dtype)
    draws = geometry.draw(1, 2, SAMPLES)
    rows, columns = geometry.shifts(draws, 2).unbind(1)
    mask = geometry.flip_mask("random", draws, 1, 2, SAMPLES)
    padded = geometry.pad(images, 2)
    got = geometry.shift_and_flip(padded, rows, columns, mask, 9, 7)
    for i in range(16):
        window = padded[i, rows[i] : rows[i] + 9, columns[i] : columns[i] + 7]
        assert torch.equal(got[i], window.flip(1) if mask[i] else window)
    assert 0 < mask.sum() < 16
    assert {int(rows.min()), int(rows.max())} <= set(range(5))
    assert rows.unique().numel() > 2


def test_torch_windows_give_the_same_as_the_host_path() -> None:
    draws = geometry.draw(0, 0, SAMPLES)
    rows, columns = geometry.shifts(draws, 3).unbind(1)
    mask = geometry.flip_mask("random", draws, 0, 0, SAMPLES)
    padded = geometry.pad(IMAGES, 3)
    host = geometry.shift_and_flip(padded, rows, columns, mask, 9, 7)

    assert torch.equal(host, geometry.windows_by_torch(padded, rows, columns, mask, 9, 7))
    assert torch.equal(
        geometry.shift_and_flip(padded, rows, columns, None, 9, 7),
        geometry.windows_by_torch(padded, rows, columns, None, 9, 7),
    )


def test_draws_belong_to_the_sample_not_to_the_batch() -> None:
    whole = geometry.draw(3, 1, SAMPLES)
    assert torch.equal(whole[5:9], geometry.draw(3, 1, SAMPLES[5:9]))
    assert not torch.equal(whole, geometry.draw(3, 2, SAMPLES))
    assert not torch.equal(whole, geometry.draw(4, 1, SAMPLES))


def test_alternating_flip_turns_over_in_every_epoch() -> None:
    masks = [geometry.flip_mask("alternating", geometry.draw(0, e, SAMPLES), 0, e, SAMPLES) for e in range(3)]
    assert torch.equal(masks[0], ~masks[1])
    assert torch.equal(masks[0], masks[2])
    assert 0 < masks[0].sum() < 16


def test_reflection_padding() -> None:
    got = geometry.pad(IMAGES, 2, "reflect")
    expected = np.pad(IMAGES.numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    np.testing.assert_array_equal(got.numpy(), expected)


def test_crop_boxes_of_whole_pixels_are_slices() -> None:
    images = torch.rand(2, 12, 12, 3)
    boxes = torch.tensor([[2.0, 3.0, 8.0, 9.0], [0.0, 0.0, 6.0, 6.0]])
    got = geometry.crop_boxes(images, boxes, 6)
    torch.testing.assert_close(got[0], images[0, 3:9, 2:8], rtol=0, atol=1e-5)
    torch.testing.assert_close(got[1], images[1, :6, :6], rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["resized", "distorted", "resize-resized"])
def test_random_boxes_lie_inside_and_have_the_asked_area(mode: str) -> None:
    rule = CropRule.training(DataOptions(), mode, 224)
    generator = np.random.default_rng(0)
    heights, widths = generator.integers(60, 700, (2, 400)).astype(float)
    boxes = rule.boxes(heights, widths, rule.draw(0, 0, np.arange(400)))
    left, top, right, bottom = boxes.T
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (right <= widths + 1e-6).all()
    assert (bottom <= heights + 1e-6).all()
    share = (right - left) * (bottom - top) / (heights * widths)
    smallest = {"resized": 0.08, "resize-resized": 0.08, "distorted": 0.1}[mode]
    assert share.min() > smallest * 0.9
    assert share.max() <= 1
    aspect = (right - left) / (bottom - top)
    usual = (np.minimum(heights, widths) / np.maximum(heights, widths)) > 0.8
    assert 0.35 < share[usual].mean() < 0.62
    assert (np.abs(np.log(aspect[usual])) < np.log(4 / 3) + 0.05).all()


def test_boxes_are_keyed_by_sample_and_epoch() -> None:
    rule = CropRule.training(DataOptions(), "resized", 32)
    sizes = np.full(8, 100.0)
    whole = rule.boxes(sizes, sizes, rule.draw(0, 0, np.arange(8)))
    part = rule.boxes(sizes[:3], sizes[:3], rule.draw(0, 0, np.arange(5, 8)))
    np.testing.assert_array_equal(whole[5:], part)
    assert (whole != rule.boxes(sizes, sizes, rule.draw(0, 1, np.arange(8)))).any()


def test_extreme_images_use_the_fallback() -> None:
    heights, widths = np.array([10.0, 1000.0]), np.array([1000.0, 10.0])
    rule = CropRule.training(DataOptions(min_crop_area=0.9), "resized", 32)
    boxes = rule.boxes(heights, widths, rule.draw(0, 0, np.arange(2)))
    np.testing.assert_array_equal(boxes[0], [493, 0, 506, 10])
    distorted = CropRule.training(DataOptions(min_crop_area=0.9), "distorted", 32)
    everything = distorted.boxes(heights, widths, distorted.draw(0, 0, np.arange(2)))
    np.testing.assert_array_equal(everything, [[0, 0, 1000, 10], [0, 0, 10, 1000]])


def test_the_central_crop_is_the_middle_224_of_256() -> None:
    rule = CropRule.validation(DataOptions(), 224)
    boxes = rule.boxes(np.array([256.0, 512.0]), np.array([256.0, 1024.0]), None)
    np.testing.assert_allclose(boxes, [[16, 16, 240, 240], [288, 32, 736, 480]])
    assert CropRule.validation(DataOptions(validation_resize=224), 224).boxes(
        np.array([100.0]), np.array([100.0]), None
    ).tolist() == [[0, 0, 100, 100]]


@pytest.mark.parametrize("mode", ["resized", "distorted", "resize-resized", "centre", "none"])
def test_boxes_chosen_one_by_one_are_those_chosen_together(mode: str) -> None:
    rule = CropRule.training(DataOptions(), mode, 224)
    sizes = np.random.default_rng(0).integers(1, 600, (300, 2))
    sizes[:20, 0], sizes[20:40, 1] = 3, 2  # so narrow that most attempts do not fit
    heights, widths = (sizes[:, i].tolist() for i in range(2))
    samples = np.arange(1000, 1300)
    expected = rule.boxes(sizes[:, 0].astype(float), sizes[:, 1].astype(float), rule.draw(7, 3, samples))
    np.testing.assert_array_equal(rule.choose(7, 3, samples, heights, widths), expected)
