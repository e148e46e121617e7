"""Which classes are confused, and the images with the most confident wrong answers."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conveyor.data.batch import Batch
from conveyor.files import write_atomically

KEPT = 24
"""Mistakes of one validation that are shown."""
LARGEST = 64
"""Pixels of the longer side of a shown image."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One image, its label and the network's answer."""

    image: Tensor
    """uint8 [H, W, C]."""
    label: int
    predicted: int
    confidence: float
    sample: int


class Mistakes:
    """The most confident wrong answers of one validation."""

    def __init__(self) -> None:
        self.kept: list[Mistake] = []

    def see(self, batch: Batch, logits: Tensor) -> None:
        """Collect the mistakes in the valid part of a batch."""
        if batch.images.dtype != torch.uint8 or batch.images.numel() == 0:
            return
        logits = logits.cpu()
        labels = batch.labels[: batch.num_valid].cpu()
        confidence, answer = logits.softmax(dim=1).max(dim=1)
        for index in (answer != labels).nonzero().flatten().tolist():
            self.kept.append(
                Mistake(
                    batch.images[index].cpu().clone(),
                    int(labels[index]),
                    int(answer[index]),
                    float(confidence[index]),
                    int(batch.samples[index]),
                )
            )
        self.kept.sort(key=lambda mistake: (-mistake.confidence, mistake.sample))
        del self.kept[KEPT:]


def write_mistakes(folder: Path, mistakes: list[Mistake]) -> None:
    """`mistakes/mistakes.json` and a small PNG for each."""
    from PIL import Image

    home = folder / "mistakes"
    shutil.rmtree(home, ignore_errors=True)
    if not mistakes:
        return
    home.mkdir()
    entries: list[dict[str, Any]] = []
    for number, mistake in enumerate(mistakes):
        name = f"{number:04d}.png"
        pixels = mistake.image[..., :3] if mistake.image.shape[-1] >= 3 else mistake.image[..., 0]
        picture = Image.fromarray(pixels.contiguous().numpy())
        picture.thumbnail((LARGEST, LARGEST))
        picture.save(home / name)
        entries.append(
            {
                "file": name,
                "label": mistake.label,
                "predicted": mistake.predicted,
                "confidence": round(mistake.confidence, 6),
                "sample": mistake.sample,
            }
        )
    write_atomically(home / "mistakes.json", json.dumps(entries, indent=1))


def write_confusion(folder: Path, confusion: Tensor, class_names: tuple[str, ...], update: int) -> None:
    """`confusion.json` of the weights after `update`: rows are true classes, columns answers; of many without zeros."""
    classes = list(class_names) or [str(number) for number in range(len(confusion))]
    document: dict[str, Any] = {"classes": classes, "update": update}
    if len(confusion) <= 32:
        document["matrix"] = confusion.tolist()
    else:
        document["counts"] = [
            [row, column, int(confusion[row, column])] for row, column in confusion.nonzero().tolist()
        ]
    write_atomically(folder / "confusion.json", json.dumps(document))
