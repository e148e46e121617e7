"""Small data sets made by the tests."""

import gzip
import struct
from pathlib import Path

import numpy as np


def write_idx(path: Path, array: np.ndarray, zipped: bool = False) -> None:
    content = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if zipped else content)


def make_mnist(folder: Path, train: int = 24, test: int = 12, zipped: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Writes the four idx files; returns the training images and labels."""
    generator = np.random.default_rng(0)
    arrays = {}
    for prefix, count in (("train", train), ("t10k", test)):
        images = generator.integers(0, 256, (count, 28, 28), np.uint8)
        labels = generator.integers(0, 10, count).astype(np.uint8)
        suffix = ".gz" if zipped else ""
        write_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}", images, zipped)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}", labels, zipped)
        arrays[prefix] = (images, labels)
    return arrays["train"]


def make_cifar10(folder: Path, per_file: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Writes the six binary files; returns the training images [N, 32, 32, 3] and labels."""
    generator = np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = [], []
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        planes = generator.integers(0, 256, (per_file, 3, 32, 32), np.uint8)
        numbers = generator.integers(0, 10, (per_file, 1)).astype(np.uint8)
        (folder / name).write_bytes(np.concatenate([numbers, planes.reshape(per_file, -1)], 1).tobytes())
        if name.startswith("data"):
            images.append(planes.transpose(0, 2, 3, 1))
            labels.append(numbers[:, 0])
    return np.concatenate(images), np.concatenate(labels)
