"""Whether a new version answers like the one in service: tried on the last real requests before a swap."""

import asyncio
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from conveyor.errors import UserError
from conveyor.serve.batching import padded_size
from conveyor.serve.errors import Refused
from conveyor.serve.model import ServedModel
from conveyor.serve.protocols import images as pictures

MOST_BYTES = 64 << 20
"""Of the images that are kept."""
Sent = bytes | NDArray[np.uint8]
"""A photograph as it was sent, or the pixels of one."""


class DisagreementError(UserError):
    """A new version that gives other answers."""


class Recent:
    """The last images that were asked about, at most `most`, each with the label that was answered."""

    def __init__(self, most: int) -> None:
        self._kept: deque[tuple[Sent, str]] = deque()
        self._most, self._bytes = most, 0

    def keep(self, sent: Sequence[Sent], labels: Sequence[str]) -> None:
        for one, label in zip(sent, labels, strict=True):
            copied = one.copy() if isinstance(one, np.ndarray) else bytes(one)  # of an array: not its whole batch
            self._kept.append((copied, label))
            self._bytes += _size(copied)
            while len(self._kept) > self._most or self._bytes > MOST_BYTES:
                self._bytes -= _size(self._kept.popleft()[0])

    def __len__(self) -> int:
        return len(self._kept)

    async def agreement(self, model: ServedModel, max_pixels: int) -> float:
        """The share of the kept images to which `model` gives the same label; what it cannot take is another answer."""
        kept = list(self._kept)
        agreed, largest = 0, model.sizes[-1]
        for start in range(0, len(kept), largest):
            part = kept[start : start + largest]
            images = [await asyncio.to_thread(_pixels, sent, model, max_pixels) for sent, _ in part]
            taken = [(image, label) for image, (_, label) in zip(images, part, strict=True) if image is not None]
            if not taken:
                continue
            batch = np.zeros((padded_size(len(taken), model.sizes), *model.preprocessing.image_shape), np.uint8)
            batch[: len(taken)] = np.stack([image for image, _ in taken])
            # Directly, not through the queue, whose figures are of callers.
            answers = (await model.pool.run(batch))[: len(taken)].argmax(1)
            agreed += sum(model.label(int(answer)) == label for answer, (_, label) in zip(answers, taken, strict=True))
        return agreed / max(1, len(kept))


def _pixels(sent: Sent, model: ServedModel, max_pixels: int) -> NDArray[np.uint8] | None:
    if isinstance(sent, np.ndarray):
        return sent if sent.shape == tuple(model.preprocessing.image_shape) else None
    try:
        return pictures.decode(sent, model.preprocessing, max_pixels)
    except Refused:
        return None


def _size(sent: Sent) -> int:
    return sent.nbytes if isinstance(sent, np.ndarray) else len(sent)
