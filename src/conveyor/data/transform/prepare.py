"""From a batch of 8-bit images to the network's input: crop, flip, augment, normalise, mix, all batched.

One function serves both places: with `--normalize-on host` the loader threads run it (`on_host`), otherwise it runs on
the device after the 8-bit images were copied there. The results are the same.
"""

import dataclasses

import numpy as np
import torch
from torch import Tensor

from conveyor.data.batch import Batch, Target
from conveyor.data.catalogue import DatasetInfo
from conveyor.data.loader import Transform
from conveyor.data.photo import crops
from conveyor.data.progressive_size import image_size_at
from conveyor.data.subject import Subject, subject
from conveyor.data.transform import augment, erasing, geometry, jitter, mixing, operations
from conveyor.data.transform.normalize import Normalization
from conveyor.data.transform.randaugment import randaugment, trivialaugment
from conveyor.numerics import keyed
from conveyor.numerics.copy_stream import CopyStream, sent
from conveyor.options import Options


class Prepare:
    """`prepare(batch, train)` -> (x [B, C, H, W] channels_last of `dtype` on `device`, Target on the host)."""

    def __init__(
        self,
        options: Options,
        info: DatasetInfo,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        about: Subject | None = None,
    ) -> None:
        self._data = options.data
        self._seed = options.run.seed
        self._info = info
        self.device = torch.device(device)
        self.dtype = dtype
        self.copy = CopyStream(self.device)
        about = about or subject(options, info)
        self.image_size = about.image_size
        self.channels = about.in_channels
        self.crop = options.data.train_crop or info.default_crop
        self.flip = options.data.flip or info.default_flip
        self._pads = self.crop == "pad" and options.data.crop_padding > 0
        self.normalization_name = about.normalization
        self.normalization = Normalization.named(self.normalization_name, info.channels)
        self.mixing = mixing.Mixing.from_options(options.data)
        in_memory = info.train_images if info.kind == "memory" else 0
        count = options.data.repeated_augmentation * in_memory
        self._moves, self._plans, self._erased = (
            geometry.PerEpoch(draw, count) for draw in (self._draw_moves, self._draw_plan, self._draw_erased)
        )
        self._synthetic: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def __call__(self, batch: Batch, train: bool) -> tuple[Tensor, Target]:
        if self._data.synthetic_data:
            return self._make_synthetic(len(batch), self.size(batch.epoch, train))
        batch = self._on_device(batch)
        if not batch.prepared:
            batch = self._pixels(batch, train)
        if train and self.mixing and batch.mixed is None and not self._mixes_on_host():
            batch = self._mix(batch)
        return self._to_network(batch.images), Target(batch.labels, batch.mixed)

    def on_host(self, train: bool) -> Transform | None:
        """What the loader threads should do to each batch; None when the 8-bit images are transferred as they are."""
        if self._data.synthetic_data:
            return None
        if self._data.normalize_on == "host" or (self._mixes_on_host() and train):
            mixes = train and self._mixes_on_host() and bool(self.mixing)
            return lambda batch: self._mix(self._pixels(batch, train)) if mixes else self._pixels(batch, train)
        if not self._data.eight_bit_io:
            return lambda batch: dataclasses.replace(batch, images=batch.images.to(torch.float32))
        return None

    def size(self, epoch: int, train: bool) -> int:
        """Height and width of the network's input in `epoch`; validation keeps the full size."""
        return image_size_at(self._data.progressive_image_size, epoch, self.image_size) if train else self.image_size

    def _mixes_on_host(self) -> bool:
        return self._data.mix_on == "host"

    def _on_device(self, batch: Batch) -> Batch:
        if self.device.type == "cpu":
            return batch
        # Labels and samples' numbers stay: what is drawn from them is drawn on the host, and labels may be sent to another
        # worker; the host need not wait for the device for either.
        return dataclasses.replace(batch, images=self.copy(batch.images))

    def _pixels(self, batch: Batch, train: bool) -> Batch:
        """Crop, flip, augment, resize and normalise: float32 [B, H, W, C]."""
        images, size = batch.images, self.size(batch.epoch, train)
        boxes = None
        if train and self._data.random_erasing:
            (boxes,) = self._erased(batch.samples, batch.epoch, size, size)
        if self._in_one_pass(batch, train):
            offsets, mask = self._moves_of(batch, train)
            padding, fill, plan = self._data.crop_padding, self._data.crop_fill, self._plan(batch, train, size, size)
            images = augment.augment(images, self.normalization, offsets, padding, fill, mask, plan, boxes)
            boxes = None
        elif self.normalization.per_image and self._info.kind == "memory":
            # Statistics are those of the stored image, so padding is zero in normalised values.
            images = self._normalized(self._augmented(images, batch, train))
            images = self._geometry(images, batch, train)
        else:
            images = self._augmented(self._geometry(images, batch, train), batch, train)
            images = self._normalized(images)
        if boxes is not None:
            images = erasing.erase(images, boxes)
        return dataclasses.replace(batch, images=images, prepared=True)

    def _in_one_pass(self, batch: Batch, train: bool) -> bool:
        """Whether `augment` can do all that is needed in one pass: images keep their size, and nothing is cut out."""
        size, planned = self.size(batch.epoch, train), train and self._recolours
        fits = not self._cuts_boxes(train) and batch.images.shape[1:3] == (size, size)
        return fits and augment.applies(batch.images, self.normalization, planned=planned)

    def _normalized(self, images: Tensor) -> Tensor:
        if images.shape[3] != len(self.normalization.scale):
            # Photographs read as grey for a network with one channel.
            self.normalization = Normalization.named(self.normalization_name, images.shape[3])
        return self.normalization(images)

    def _geometry(self, images: Tensor, batch: Batch, train: bool) -> Tensor:
        """Crops and flips of images of equal size; photographs were cropped when they were decoded."""
        size = self.size(batch.epoch, train)
        height, width = images.shape[1:3]
        offsets, mask = self._moves_of(batch, train)
        if (offsets is not None or mask is not None) and augment.applies(images, None):
            images = augment.augment(images, None, offsets, self._data.crop_padding, self._data.crop_fill, mask)
        elif offsets is not None:
            rows, columns = offsets.unbind(1)
            images = geometry.pad(images, self._data.crop_padding, self._data.crop_fill)
            images = geometry.shift_and_flip(images, rows, columns, mask, height, width)
        elif mask is not None:
            images = geometry.flip(images, mask)
        if self._cuts_boxes(train):
            return geometry.crop_boxes(images, self._boxes(batch, height, width, size), size)
        return geometry.resize(images, size)

    def _is_varied(self, train: bool) -> bool:
        """Whether crops and flips are random: in training, and in validation with `--validation-transform train`."""
        return train or self._data.validation_transform == "train"

    def _cuts_boxes(self, train: bool) -> bool:
        return self._is_varied(train) and self._info.kind == "memory" and self.crop in crops.ATTEMPTS

    def _moves_of(self, batch: Batch, train: bool) -> geometry.Rows:
        """Where the windows of padded images begin, int64 [B, 2], and which images are mirrored, bool [B]."""
        if not self._is_varied(train) or not (self._pads or self.flip != "none"):
            return None, None
        moves, where = self._moves(batch.samples, batch.epoch), batch.images.device
        return tuple(None if one is None else sent(one, where) for one in moves)

    def _draw_moves(self, samples: Tensor, epoch: int) -> geometry.Rows:
        draws = geometry.draw(self._seed, epoch, samples)
        mask = geometry.flip_mask(self.flip, draws, self._seed, epoch, samples) if self.flip != "none" else None
        return (geometry.shifts(draws, self._data.crop_padding) if self._pads else None), mask

    def _boxes(self, batch: Batch, height: int, width: int, size: int) -> Tensor:
        rule = crops.CropRule.training(self._data, self.crop, size)
        samples = batch.samples.numpy()
        heights, widths = (np.full(len(samples), float(extent)) for extent in (height, width))
        return torch.from_numpy(rule.boxes(heights, widths, rule.draw(self._seed, batch.epoch, samples)))

    @property
    def is_constant(self) -> bool:
        """Whether a training image is the same in every epoch."""
        data = self._data
        varied = self._pads or self.flip != "none" or self._recolours or data.random_erasing or self.mixing
        return not (varied or data.progressive_image_size or data.synthetic_data or self.crop in crops.ATTEMPTS)

    @property
    def _recolours(self) -> bool:
        return self._data.augment != "none" or any(self._data.color_jitter)

    def _augmented(self, images: Tensor, batch: Batch, train: bool) -> Tensor:
        plan = self._plan(batch, train, *images.shape[1:3])
        return images if plan is None else operations.change(images, plan)

    def _plan(self, batch: Batch, train: bool, height: int, width: int) -> Tensor | None:
        return self._plans(batch.samples, batch.epoch, height, width)[0] if train and self._recolours else None

    def _draw_plan(self, samples: Tensor, epoch: int, height: int, width: int) -> geometry.Rows:
        data, key, size = self._data, (self._seed, epoch, samples), (height, width)
        plans = [jitter.jitter(*key, data.color_jitter)] if any(data.color_jitter) else []
        if data.augment == "trivialaugment":
            plans.append(trivialaugment(*key, size))
        elif data.augment == "randaugment":
            number, strength = data.augment_operations, data.augment_magnitude
            plans.append(randaugment(*key, size, operations=number, magnitude=strength))
        return (torch.cat(plans, 1),)

    def _draw_erased(self, samples: Tensor, epoch: int, *size: int) -> geometry.Rows:
        return (erasing.draw(self._seed, epoch, samples, self._data.random_erasing, *size),)

    def _mix(self, batch: Batch) -> Batch:
        images, terms = mixing.mix(
            batch.images,
            batch.labels,
            batch.samples,
            self.mixing,
            seed=self._seed,
            epoch=batch.epoch,
            update=batch.update,
            slot=batch.slot,
        )
        return dataclasses.replace(batch, images=images, mixed=terms)

    def _to_network(self, images: Tensor) -> Tensor:
        images = fit_channels(images, self.channels).to(self.dtype)
        return images.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)

    def _make_synthetic(self, batch: int, size: int) -> tuple[Tensor, Target]:
        """Normal images and labels in 0..C-2, made once on the device and reused for every batch."""
        if (batch, size) not in self._synthetic:
            generator = keyed.generator(self._seed, "synthetic", batch, size, device=self.device)
            shape = (batch, size, size, self.channels)
            images = torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32)
            high = max(1, self._info.num_classes - 1)
            labels = torch.randint(high, (batch,), generator=generator, device=self.device).cpu()
            self._synthetic[batch, size] = (self._to_network(images), labels)
        images, labels = self._synthetic[batch, size]
        return images, Target(labels)


def fit_channels(images: Tensor, channels: int) -> Tensor:
    """[B, H, W, C] with `channels` channels: grey becomes colour by repetition, further channels are zero."""
    present = images.shape[3]
    if present == channels:
        return images
    if present == 1 and channels >= 3:
        images, present = images.expand(*images.shape[:3], 3), 3
    if present > channels:
        raise ValueError(f"images have {present} channels, the network takes {channels}")
    padded = images.new_zeros(*images.shape[:3], channels)
    padded[..., :present] = images
    return padded
