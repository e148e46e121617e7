"""The data of the conformance runs: real files in the originals' formats, small enough for a laptop."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from conveyor.data.formats.tfrecord import write_records
from conveyor.data.formats.tfrecord_dataset import shard_name
from conveyor.data.formats.tfrecord_example import encode_example

CLASSES = 10
PHOTOGRAPHS = 300
"""Different photographs; record files repeat them, since one update of some commands takes 16384 images."""
RECORDS = 16_384


def photograph(number: int, label: int) -> np.ndarray:
    """A coloured scene: the class sets the hue and the shape, the number everything else."""
    generator = np.random.default_rng([number, label])
    height, width = int(generator.integers(40, 60)), int(generator.integers(40, 70))
    coarse = generator.integers(60, 200, (6, 7, 3)).astype(np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    top, left = int(generator.integers(4, height // 2)), int(generator.integers(4, width // 2))
    hue = np.array([25 * label, 255 - 25 * label, 60 * (label % 4)])
    image[top : top + 8 + label, left : left + 26 - 2 * label] = hue
    return (image + generator.integers(-8, 9, image.shape)).clip(0, 255).astype(np.uint8)


def jpeg(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def make_all(root: Path) -> None:
    """`imagenet-data` (TFRecord), `imagenet-raw-dataset` (class folders) and `cifar-10-batches-bin` below `root`."""
    photos = [(label, jpeg(photograph(number, label))) for number in range(PHOTOGRAPHS) for label in [number % CLASSES]]
    _records(root / "imagenet-data", photos)
    _folders(root / "imagenet-raw-dataset", photos)
    _cifar(root / "cifar-10-batches-bin")


def _records(folder: Path, photos: list[tuple[int, bytes]]) -> None:
    folder.mkdir(parents=True)
    examples = [
        encode_example({"image/encoded": [data], "image/class/label": [label + 1], "image/class/text": [b"class"]})
        for label, data in photos
    ]
    shards = 8
    for shard in range(shards):
        numbers = range(shard, RECORDS, shards)
        write_records(
            folder / shard_name("train", shard, shards), (examples[number % len(examples)] for number in numbers)
        )
    write_records(folder / shard_name("validation", 0, 1), examples[:100])
    (folder / "labels.txt").write_text("\n".join(f"class {label}" for label in range(1000)) + "\n")


def _folders(folder: Path, photos: list[tuple[int, bytes]]) -> None:
    for number, (label, data) in enumerate(photos):
        split = "train" if number < 200 else "validation"
        place = folder / split / f"n{label:08d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.JPEG").write_bytes(data)


def _cifar(folder: Path) -> None:
    """Class-coloured squares on noise in the binary layout: 6 files of 600 images."""
    folder.mkdir(parents=True)
    for file, name in enumerate([*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]):
        generator = np.random.default_rng(file)
        labels = generator.integers(0, CLASSES, 600).astype(np.uint8)
        planes = generator.integers(0, 256, (600, 3, 32, 32), np.uint8)
        for image, label in zip(planes, labels, strict=True):
            image[label % 3, 8:24, 8:24] = 25 * label
        (folder / name).write_bytes(np.concatenate([labels[:, None], planes.reshape(600, -1)], 1).tobytes())
