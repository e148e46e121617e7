"""JPEG files made by the tests."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(height: int = 90, width: int = 120, seed: int = 0) -> np.ndarray:
    """Smooth colours with some texture, so that JPEG has something to do."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return (smooth + generator.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8)


def encoded(image: np.ndarray, kind: str = "JPEG", mode: str | None = None, **options: object) -> bytes:
    buffer = io.BytesIO()
    made = Image.fromarray(image)
    (made.convert(mode) if mode else made).save(buffer, kind, **options)
    return buffer.getvalue()


def make_folder(root: Path, train: int = 6, validation: int = 3, classes: tuple[str, ...] = ("ape", "bee")) -> None:
    """`train` and `validation` images in each class, of various sizes."""
    number = 0
    for split, count in (("train", train), ("validation", validation)):
        for name in classes:
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                number += 1
                image = picture(60 + 7 * number % 50, 50 + 11 * number % 90, number)
                (root / split / name / f"{i}.JPEG").write_bytes(encoded(image, quality=90))
