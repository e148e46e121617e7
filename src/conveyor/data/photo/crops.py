"""Random and central crop boxes, for many images at once; random numbers come in as an argument.

A box is (left, top, right, bottom) in pixels of the upright image, float64 [B, 4]; the crop is resized to the network's
input in one step, also where older programs resized twice.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from conveyor.data.formats.boxes import Boxes, covered
from conveyor.data.order import Indices
from conveyor.data.photo.centre import Box, Floats, central, resized_side
from conveyor.numerics import keyed
from conveyor.options.data import DataOptions

ATTEMPTS = {"resized": 10, "resize-resized": 10, "distorted": 100}
"""Boxes that are tried before the fallback, for the random modes."""
MIN_AREA = {"resized": 0.08, "resize-resized": 0.08, "distorted": 0.05}
ASPECTS = (3 / 4, 4 / 3)
_LOW_ASPECT, _HIGH_ASPECT = math.log(ASPECTS[0]), math.log(ASPECTS[1])
MIN_OBJECT_COVERED = 0.1
TRIES = 10
"""Crops that are drawn for an image with objects in it; if none holds enough of one, the last is taken."""


@dataclasses.dataclass(frozen=True, slots=True)
class CropRule:
    """How a box is chosen: `mode` as `--train-crop` names it, for an output of `size` x `size`."""

    mode: str
    size: int
    min_area: float
    resize: int
    """Shorter side of the resize before the crop, which is not carried out but enters the box."""
    overlap: float = 0.0
    """Share of an object that a random crop should hold; 0: no condition."""
    bicubic: bool = False
    """How the crop is resized: central ones as `--interpolation` says, random ones always bilinearly."""

    @classmethod
    def training(cls, options: DataOptions, mode: str, size: int) -> "CropRule":
        min_area = options.min_crop_area if options.min_crop_area is not None else MIN_AREA.get(mode, 0.0)
        if mode == "pad":
            return cls("centre", size, min_area, size)
        overlap = options.crop_overlap if mode in ATTEMPTS else 0.0
        bicubic = mode == "centre" and options.interpolation == "bicubic"
        return cls(mode, size, min_area, resized_side(options, size), overlap, bicubic)

    @classmethod
    def validation(cls, options: DataOptions, size: int) -> "CropRule":
        return cls("centre", size, 0.0, resized_side(options, size), bicubic=options.interpolation == "bicubic")

    def boxes(self, heights: Floats, widths: Floats, draws: Floats | None) -> Floats:
        """Boxes [B, 4] for images of the given sizes; `draws` from `draw`, None for deterministic modes."""
        if self.mode == "none":
            return np.stack([np.zeros_like(widths), np.zeros_like(heights), widths, heights], 1)
        if self.mode == "centre":
            return central(heights, widths, self.size / self.resize)
        assert draws is not None
        if self.mode == "distorted":
            return _distorted(heights, widths, draws, self.min_area)
        if self.mode == "resize-resized":
            scale = self.resize / np.minimum(heights, widths)
            scaled = _resized(np.floor(heights * scale), np.floor(widths * scale), draws, self.min_area)
            across, down = widths / np.floor(widths * scale), heights / np.floor(heights * scale)
            return scaled * np.stack([across, down, across, down], 1)
        return _resized(heights, widths, draws, self.min_area)

    def choose(
        self,
        seed: int,
        epoch: int,
        samples: Indices,
        heights: Sequence[int],
        widths: Sequence[int],
        objects: Sequence[Boxes | None] = (),
    ) -> Sequence[Box]:
        """The boxes of a few samples, each of which should hold `overlap` of one of the sample's `objects`."""
        chosen = self._first_draws(seed, epoch, samples, heights, widths)
        if not self.overlap or all(boxes is None or not len(boxes) for boxes in objects):
            return chosen
        return self._redrawn(chosen, seed, epoch, samples, heights, widths, objects)

    def _redrawn(
        self,
        chosen: Sequence[Box],
        seed: int,
        epoch: int,
        samples: Indices,
        heights: Sequence[int],
        widths: Sequence[int],
        objects: Sequence[Boxes | None],
    ) -> Sequence[Box]:
        """`chosen` with other draws for those that miss their objects: all tries at once, the first that holds enough."""
        high, wide = np.array(heights, np.float64), np.array(widths, np.float64)
        hits = covered(np.array(chosen, np.float64)[:, None], high, wide, objects, self.overlap)[:, 0]
        missed = np.flatnonzero(~hits)
        if not len(missed):
            return chosen
        high, wide = high[missed], wide[missed]
        draws = self.draw(seed, epoch, np.asarray(samples)[missed], TRIES)
        tried = self.boxes(np.repeat(high, TRIES), np.repeat(wide, TRIES), draws).reshape(len(missed), TRIES, 4)
        hits = covered(tried, high, wide, [objects[row] for row in missed.tolist()], self.overlap)
        hits[:, -1] = True
        found = list(chosen)
        for row, box in zip(missed.tolist(), tried[np.arange(len(missed)), hits.argmax(1)].tolist(), strict=True):
            found[row] = tuple(box)
        return found

    def _first_draws(
        self, seed: int, epoch: int, samples: Indices, heights: Sequence[int], widths: Sequence[int]
    ) -> Sequence[Box]:
        """The first boxes, as `boxes` and `draw` give them, without their overhead per call."""
        if self.mode == "resized":
            key = keyed.state_of(seed, "box", epoch)
            return [
                _resized_one(keyed.state_after(key, int(sample)), height, width, self.min_area)
                for sample, height, width in zip(samples, heights, widths, strict=True)
            ]
        draws = self.draw(seed, epoch, samples)
        found = self.boxes(np.array(heights, np.float64), np.array(widths, np.float64), draws)
        return [(left, top, right, bottom) for left, top, right, bottom in found.tolist()]

    def draw(self, seed: int, epoch: int, samples: Indices, tries: int = 1) -> Floats | None:
        """Uniform numbers [B * tries, attempts, 4] that depend on (seed, epoch, sample) alone; the first try's never change."""
        attempts = ATTEMPTS.get(self.mode)
        if attempts is None:
            return None
        keys = torch.from_numpy(np.ascontiguousarray(samples))
        drawn = keyed.uniform(seed, "box", epoch, keys, count=4 * attempts * tries, dtype=torch.float64)
        return drawn.numpy().reshape(len(samples) * tries, attempts, 4)


def _resized(heights: Floats, widths: Floats, draws: Floats, min_area: float) -> Floats:
    """Area uniform in [min_area, 1], aspect log-uniform in [3/4, 4/3]; the fallback is central with the aspect clamped."""
    area_draw, aspect_draw, top_draw, left_draw = np.moveaxis(draws, 2, 0)
    areas = (heights * widths)[:, None] * (min_area + area_draw * (1 - min_area))
    aspects = np.exp(_LOW_ASPECT + aspect_draw * (_HIGH_ASPECT - _LOW_ASPECT))
    w, h = np.rint(np.sqrt(areas * aspects)), np.rint(np.sqrt(areas / aspects))
    fits = (w >= 1) & (h >= 1) & (w <= widths[:, None]) & (h <= heights[:, None])
    chosen, w, h, top_draw, left_draw = _first(fits, w, h, top_draw, left_draw)
    top, left = np.floor(top_draw * (heights - h + 1)), np.floor(left_draw * (widths - w + 1))
    boxes = np.stack([left, top, left + w, top + h], 1)
    if chosen.all():
        return boxes
    aspect = widths / heights
    w = np.where(aspect > ASPECTS[1], np.rint(heights * ASPECTS[1]), widths)
    h = np.where(aspect < ASPECTS[0], np.rint(widths / ASPECTS[0]), heights)
    left, top = np.floor((widths - w) / 2), np.floor((heights - h) / 2)
    return np.where(chosen[:, None], boxes, np.stack([left, top, left + w, top + h], 1))


def _resized_one(state: int, height: int, width: int, min_area: float) -> Box:
    """`_resized` for one image, whose key has `state`: for one, plain numbers are ten times as fast as arrays."""
    for attempt in range(ATTEMPTS["resized"]):
        area = height * width * (min_area + keyed.uniform_number(state, 4 * attempt) * (1 - min_area))
        aspect = math.exp(_LOW_ASPECT + keyed.uniform_number(state, 4 * attempt + 1) * (_HIGH_ASPECT - _LOW_ASPECT))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 1 <= w <= width and 1 <= h <= height:
            top = math.floor(keyed.uniform_number(state, 4 * attempt + 2) * (height - h + 1))
            left = math.floor(keyed.uniform_number(state, 4 * attempt + 3) * (width - w + 1))
            return left, top, left + w, top + h
    w = round(height * ASPECTS[1]) if width / height > ASPECTS[1] else width
    h = round(width / ASPECTS[0]) if width / height < ASPECTS[0] else height
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _distorted(heights: Floats, widths: Floats, draws: Floats, min_area: float) -> Floats:
    """TensorFlow's form: aspect uniform in [3/4, 4/3], height uniform between the heights of the smallest and the largest
    area that fit, at least a tenth of the image covered; the fallback is the whole image.
    """
    aspect_draw, height_draw, top_draw, left_draw = np.moveaxis(draws, 2, 0)
    aspects = ASPECTS[0] + aspect_draw * (ASPECTS[1] - ASPECTS[0])
    whole = (heights * widths)[:, None]
    lowest = np.rint(np.sqrt(min_area * whole / aspects))
    highest = np.minimum(np.rint(np.sqrt(whole / aspects)), heights[:, None])
    highest = np.where(np.rint(highest * aspects) > widths[:, None], np.floor(widths[:, None] / aspects), highest)
    h = np.minimum(lowest, highest) + np.floor(height_draw * (np.maximum(highest - lowest, 0) + 1))
    w = np.rint(h * aspects)
    covered = h * w / whole
    fits = (h >= 1) & (w >= 1) & (h <= heights[:, None]) & (w <= widths[:, None])
    fits &= (covered >= max(min_area, MIN_OBJECT_COVERED)) & (covered <= 1)
    chosen, w, h, top_draw, left_draw = _first(fits, w, h, top_draw, left_draw)
    top, left = np.floor(top_draw * (heights - h + 1)), np.floor(left_draw * (widths - w + 1))
    boxes = np.stack([left, top, left + w, top + h], 1)
    everything = np.stack([np.zeros_like(widths), np.zeros_like(heights), widths, heights], 1)
    return np.where(chosen[:, None], boxes, everything)


def _first(
    fits: npt.NDArray[np.bool_], *values: Floats
) -> tuple[npt.NDArray[np.bool_], Floats, Floats, Floats, Floats]:
    """Of each row the first attempt that fits: whether there is one, and the four values of it."""
    first = fits.argmax(1)[:, None]
    w, h, top, left = (np.take_along_axis(value, first, 1)[:, 0] for value in values)
    return np.take_along_axis(fits, first, 1)[:, 0], w, h, top, left
