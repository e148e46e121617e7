"""From 8-bit batches to the network's input: the same on host and device, on any layout, whatever the batch."""

import numpy as np
import pytest
import torch

from conveyor.data import catalogue, open_dataset
from conveyor.data.batch import Batch
from conveyor.data.feed import TrainingFeed, ValidationFeed
from conveyor.data.progressive_size import image_size_at, parse_progressive
from conveyor.data.transform import augment, geometry
from conveyor.data.transform.normalize import Normalization
from conveyor.data.transform.prepare import Prepare, fit_channels
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.topology import Topology


def cifar_batch(count: int = 12, epoch: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=generator)
    return Batch(images, torch.arange(count) % 10, torch.arange(count) + 7, 0, 0, epoch, count)


def prepare(options: Options) -> Prepare:
    return Prepare(options, catalogue.info(options.data))


CIFAR = Options().replace(data="cifar10", generated_data=True)


@pytest.mark.parametrize(
    ("name", "mean", "deviation"),
    [
        ("imagenet", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ("cifar", [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
        ("unit", [0, 0, 0], [1, 1, 1]),
        ("none", [0, 0, 0], [1 / 255] * 3),
        ("centred", [127 / 255] * 3, [128 / 255] * 3),
        ("mean", [123.68 / 255, 116.78 / 255, 103.94 / 255], [1 / 255] * 3),
    ],
)
def test_normalizations(name: str, mean: list[float], deviation: list[float]) -> None:
    images = cifar_batch().images
    expected = (images.double() / 255 - torch.tensor(mean).double()) / torch.tensor(deviation).double()
    got = Normalization.named(name, 3)(images)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4)


def test_per_image_standardisation_and_its_floor() -> None:
    images = cifar_batch(3).images
    images[1] = 77
    got = Normalization.named("per-image", 3)(images)
    assert got[0].mean().abs() < 1e-5
    assert got[0].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert (got[1] == 0).all()


def test_normalizing_does_not_change_the_input() -> None:
    images = cifar_batch().images.float()
    before = images.clone()
    Normalization.named("imagenet", 3)(images)
    assert torch.equal(images, before)


def test_grey_images_have_one_mean() -> None:
    normal = Normalization.named("imagenet", 1)
    assert normal.scale[0] == pytest.approx(1 / (255 * 0.2257), rel=1e-2)


def test_cifar_training_input_is_pad_crop_flip_normalise() -> None:
    batch = cifar_batch()
    got, target = prepare(CIFAR)(batch, train=True)
    assert got.shape == (12, 3, 32, 32)
    assert got.is_contiguous(memory_format=torch.channels_last)
    draws = geometry.draw(0, 0, batch.samples)
    rows, columns = geometry.shifts(draws, 4).unbind(1)
    mask = geometry.flip_mask("random", draws, 0, 0, batch.samples)
    for i in range(12):
        padded = torch.nn.functional.pad(batch.images[i].permute(2, 0, 1).float() / 255, (4, 4, 4, 4))
        crop = padded[:, rows[i] : rows[i] + 32, columns[i] : columns[i] + 32]
        crop = crop.flip(2) if mask[i] else crop
        mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
        torch.testing.assert_close(got[i], (crop - mean.view(3, 1, 1)) / deviation.view(3, 1, 1), rtol=1e-4, atol=1e-4)
    assert torch.equal(target.labels, batch.labels)
    assert target.mixed is None


def test_validation_input_is_not_augmented() -> None:
    batch = cifar_batch()
    got, _ = prepare(CIFAR)(batch, train=False)
    expected = Normalization.named("cifar", 3)(batch.images).permute(0, 3, 1, 2)
    assert torch.equal(got, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"normalization": "per-image"},
        {"crop_fill": "reflect", "flip": "alternating"},
        {"train_crop": "resized", "mixup_alpha": 0.3},
        {"train_crop": "none", "flip": "none", "cutmix_lambda": 0.5},
        {"augment": "randaugment", "progressive_image_size": ["0:24"]},
        {"mixup_alpha": 0.2, "cutmix_lambda": 0.5, "mix_on": "host"},
        {"train_crop": "distorted", "normalization": "per-image", "augment": "randaugment"},
    ],
)
@pytest.mark.parametrize("place", [{"normalize_on": "host"}, {"eight_bit_io": False}])
@pytest.mark.parametrize("train", [True, False])
def test_host_and_device_agree(changes: dict[str, object], place: dict[str, object], train: bool) -> None:
    batch = cifar_batch(epoch=1)
    expected, target = prepare(CIFAR.replace(**changes).replace(mix_on="device"))(batch, train)
    elsewhere = prepare(CIFAR.replace(**changes, **place))
    transform = elsewhere.on_host(train)
    assert transform is not None
    travelling = transform(batch)
    assert travelling.images.dtype == torch.float32
    got, found = elsewhere(travelling, train)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert (found.mixed is None) == (target.mixed is None)
    for (labels, weight), (same_labels, same_weight) in zip(found.mixed or [], target.mixed or [], strict=True):
        assert torch.equal(labels, same_labels)
        assert torch.equal(weight, same_weight)


@pytest.mark.parametrize(
    "changes",
    [
        {"random_erasing": 0.5},
        {"random_erasing": 0.5, "augment": "trivialaugment"},
        {"augment": "randaugment", "color_jitter": [0.4, 0.3, 0.2, 0.1]},
        {"random_erasing": 0.5, "augment": "randaugment", "normalization": "per-image"},
        {"random_erasing": 0.5, "augment": "randaugment", "progressive_image_size": ["0:24"]},
    ],
)
def test_one_pass_or_many(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    batch, make = cifar_batch(64), prepare(CIFAR.replace(**changes))
    expected, _ = make(batch, True)
    monkeypatch.setattr(augment, "applies", lambda *_, **__: False)
    assert torch.equal(make(batch, True)[0], expected)


def test_eight_bit_images_travel_as_they_are_by_default() -> None:
    assert prepare(CIFAR).on_host(True) is None


@pytest.mark.parametrize("augment", ["none", "randaugment"])
def test_augmentation_does_not_depend_on_the_batch(augment: str) -> None:
    make = prepare(CIFAR.replace(augment=augment))
    batch = cifar_batch(8)
    whole, _ = make(batch, True)
    for i in range(8):
        part = Batch(batch.images[i : i + 1], batch.labels[i : i + 1], batch.samples[i : i + 1], 5, 3, 0, 1)
        torch.testing.assert_close(make(part, True)[0][0], whole[i], rtol=1e-5, atol=1e-5)


def test_progressive_sizes_apply_to_training_only() -> None:
    make = prepare(CIFAR.replace(progressive_image_size=["0:16", "2:24"]))
    assert make(cifar_batch(epoch=1), True)[0].shape[2:] == (16, 16)
    assert make(cifar_batch(epoch=2), True)[0].shape[2:] == (24, 24)
    assert make(cifar_batch(epoch=2), False)[0].shape[2:] == (32, 32)
    assert image_size_at([], 4, 32) == 32
    assert image_size_at(["3:16"], 2, 32) == 32
    assert parse_progressive(["10:128", "0:96"]) == [(0, 96), (10, 128)]
    for wrong in ("96", "a:b", "1:0", "-1:5"):
        with pytest.raises(UserError, match="EPOCH:SIZE"):
            parse_progressive([wrong])


def test_images_are_resized_to_the_network() -> None:
    assert prepare(CIFAR.replace(image_size=40))(cifar_batch(), True)[0].shape == (12, 3, 40, 40)


def test_channels() -> None:
    images = torch.rand(2, 3, 3, 1)
    four = fit_channels(images, 4)
    assert torch.equal(four[..., 1], images[..., 0])
    assert (four[..., 3] == 0).all()
    with pytest.raises(ValueError, match="channels"):
        fit_channels(torch.rand(1, 2, 2, 3), 1)
    assert prepare(CIFAR.replace(in_channels=4))(cifar_batch(), True)[0].shape == (12, 4, 32, 32)


def test_half_precision_input() -> None:
    make = Prepare(CIFAR, catalogue.info(CIFAR.data), dtype=torch.float16)
    assert make(cifar_batch(), True)[0].dtype == torch.float16


def test_synthetic_data_carry_no_pixels() -> None:
    options = Options().replace(data="imagenet", synthetic_data=True)
    dataset = open_dataset(options, "train", 64, 3)
    assert len(dataset) == 1_281_167
    with TrainingFeed(dataset, Topology(4), updates_per_epoch=10, stop_update=2, shuffle="none") as feed:
        batches = list(feed)
    assert batches[0].images.numel() == 0
    make = prepare(options.replace(image_size=64))
    (first, target), (second, _) = make(batches[0], True), make(batches[1], True)
    assert first.shape == (4, 3, 64, 64)
    assert first.data_ptr() == second.data_ptr()
    assert 0 <= target.labels.min() <= target.labels.max() < 999


def test_generated_data_are_fixed_by_the_seed() -> None:
    dataset = open_dataset(CIFAR, "train")
    assert len(dataset) == 50_000
    raw, again = dataset.read(np.array([5, 5 + 64]), 0), open_dataset(CIFAR, "train").read(np.array([5, 5 + 64]), 0)
    assert torch.equal(raw.images[0], raw.images[1])
    assert torch.equal(raw.images, again.images)
    many = dataset.read(np.arange(64), 0)
    assert many.images.float().mean().item() == pytest.approx(127, abs=3)
    assert many.images.float().std().item() == pytest.approx(60 * 0.88, abs=3)
    assert many.labels.max() <= 8


def test_digits_are_learnable_and_whole() -> None:
    options = Options()
    train, validation = open_dataset(options, "train"), open_dataset(options, "validation")
    x, y = train.images.float().flatten(1) / 255, train.labels
    labels = torch.cat([batch.labels[: batch.num_valid] for batch in ValidationFeed(validation, 50)])
    assert labels.bincount().tolist() == [36] * 10
    images = validation.images.float().flatten(1) / 255
    nearest = y[torch.cdist(images, x).argmin(1)]
    assert (nearest == validation.labels).float().mean() > 0.97


def test_limits_hold_for_opened_sets() -> None:
    options = Options().replace(max_train_images=100, max_validation_images=9)
    assert len(open_dataset(options, "train")) == 100
    assert len(open_dataset(options, "validation")) == 9


def test_validation_may_get_the_transform_of_training() -> None:
    batch = cifar_batch()
    plain, alike = prepare(CIFAR), prepare(CIFAR.replace(validation_transform="train"))
    assert torch.equal(alike(batch, False)[0], plain(batch, True)[0])
    assert not torch.equal(plain(batch, False)[0], plain(batch, True)[0])
