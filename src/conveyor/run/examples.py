"""Images for the report: the most confident mistakes, some right answers, and training images as the network gets them.

Made once, after the last update, by the main worker: nothing here can change the run.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conveyor.data.batch import Batch, Dataset
from conveyor.data.order import epoch_order, slot_indices
from conveyor.data.transform.prepare import Prepare
from conveyor.evaluate.heat_map import heat_maps
from conveyor.evaluate.mistakes import Answer, Answers
from conveyor.evaluate.validator import Validation
from conveyor.files import write_atomically
from conveyor.numerics.threads import using_threads
from conveyor.spec import RunSpec

MAPPED = 8
"""Mistakes that get a heat map: one costs as much as training on an image."""
TRAINING_IMAGES = 12
LARGEST = 96
"""Pixels of the longer side of a stored image."""


def write_answers(folder: Path, answers: Answers, validation: Validation, weights: Mapping[str, Tensor] | None) -> None:
    """`mistakes/` and `right/`: the images, and with `weights` heat maps of the answer for the first of them."""
    wrong, right = answers.wrong, answers.right
    images, given = (
        validation.read([one.sample for one in (*wrong, *right)]) if wrong or right else (torch.empty(0),) * 2
    )
    wrong, right = (wrong, right) if images.numel() else ([], [])
    chosen = [*range(min(MAPPED, len(wrong))), *range(len(wrong), len(wrong) + len(right))]
    maps: dict[int, Any] = {}
    if weights is not None and chosen:
        classes = torch.tensor([one.predicted for one in (*wrong, *right)])
        with using_threads(1):  # the same maps on every layout, whose numbers of threads differ
            found = heat_maps(validation.plain_model(weights), given[chosen], classes[chosen])
        maps = {} if found is None else dict(zip(chosen, (100 * found).round().int().tolist(), strict=True))
    for name, part, first in (("mistakes", wrong, 0), ("right", right, len(wrong))):
        entries = [_entry(one, maps.get(first + number)) for number, one in enumerate(part)]
        _write(folder, name, images[first : first + len(part)], entries)


def _entry(one: Answer, heat: list[list[int]] | None) -> dict[str, Any]:
    entry = one._asdict() | {"confidence": round(one.confidence, 6)}
    return entry if heat is None else entry | {"heat": heat}


def write_training_images(folder: Path, dataset: Dataset, spec: RunSpec, prepare: Prepare, update: int) -> None:
    """`augmented/`: the first images of `update` as the network got them, the normalisation undone."""
    images, entries = training_images(dataset, spec, prepare, update)
    _write(folder, "augmented", images, entries)


def training_images(
    dataset: Dataset, spec: RunSpec, prepare: Prepare, update: int
) -> tuple[Tensor, list[dict[str, Any]]]:
    """uint8 [N, H, W, C], and for each its sample and its labels as (class, weight)."""
    epoch, within = divmod(update, spec.length.updates_per_epoch)
    options = spec.options
    order = epoch_order(len(dataset), options.run.seed, epoch, options.data.shuffle, shards=dataset.shards())
    on_host = prepare.on_host(True)
    parts: list[Tensor] = []
    entries: list[dict[str, Any]] = []
    for slot in range(spec.topology.slots):
        indices = slot_indices(order, within, slot, spec.topology)
        if not prepare.mixing:  # mixing needs the whole slot
            indices = indices[: TRAINING_IMAGES - len(entries)]
        raw = dataset.read(indices, epoch)
        samples = torch.tensor(indices.tolist())
        batch = Batch(raw.images, raw.labels, samples, update, slot, epoch, len(indices))
        images, target = prepare(batch if on_host is None else on_host(batch), True)
        channels = len(prepare.normalization.scale)  # further ones are copies or zeros
        pixels = images.float().cpu().permute(0, 2, 3, 1)[..., :channels]
        parts.append(prepare.normalization.undone(pixels))
        terms = target.mixed or [(target.labels, torch.ones(len(indices)))]
        for at, sample in enumerate(indices.tolist()):
            labels = [
                [number, round(float(share[at]), 4)]
                for classes, share in terms
                if share[at] > 0
                for number in (classes[at].nonzero().flatten() if classes.dim() == 2 else classes[at : at + 1]).tolist()
            ]
            entries.append({"sample": sample, "update": update, "labels": labels})
        if len(entries) >= TRAINING_IMAGES:
            break
    return torch.cat(parts)[:TRAINING_IMAGES], entries[:TRAINING_IMAGES]


def _write(folder: Path, name: str, images: Tensor, entries: Sequence[dict[str, Any]]) -> None:
    """`name/name.json`, a list of the entries, each with the `file` of its image; nothing when there is none."""
    from PIL import Image

    home = folder / name
    shutil.rmtree(home, ignore_errors=True)
    if not entries:
        return
    home.mkdir()
    listed = []
    for number, (image, entry) in enumerate(zip(images, entries, strict=True)):
        pixels = image[..., :3] if image.shape[-1] >= 3 else image[..., 0]
        picture = Image.fromarray(pixels.contiguous().cpu().numpy())
        picture.thumbnail((LARGEST, LARGEST))
        picture.save(home / f"{number:04d}.png")
        listed.append({"file": f"{number:04d}.png", **entry})
    write_atomically(home / f"{name}.json", json.dumps(listed))
