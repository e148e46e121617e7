"""The teacher of a distillation: a trained model that answers to the very images that the student sees.

Its answers are those of one pass over a group of slots, or of batches in stored order where they are kept, so they do not
depend on the layout. They are kept on the disk, for later runs too, when a training image is the same in every epoch.
"""

import hashlib
import json
import logging
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from conveyor.data import open_dataset
from conveyor.data.batch import Dataset
from conveyor.data.feed import ValidationFeed
from conveyor.data.identity import Identity
from conveyor.data.transform.normalize import Normalization
from conveyor.data.transform.prepare import Prepare
from conveyor.errors import UserError
from conveyor.files import cache_folder, make_parent, write_atomically
from conveyor.infer.load import load
from conveyor.infer.loaded import Loaded
from conveyor.monitor.progress import track
from conveyor.options.coerce import to_plain
from conveyor.spec import RunSpec
from conveyor.world.world import World

_logger = logging.getLogger(__name__)

MOST_BYTES = 1 << 30
"""Of the answers that are kept in memory and on the disk; more are computed whenever they are needed."""


class Teaching:
    """`teacher(images, samples)`: its logits, from the table where there is one."""

    def __init__(self, module: nn.Module, scale: Tensor, shift: Tensor) -> None:
        self._module, self._scale, self._shift = module, scale, shift
        self.table: Tensor | None = None
        """The answers to all samples, float32 [N, C]."""

    @torch.no_grad()
    def __call__(self, images: Tensor, samples: Tensor) -> Tensor:
        if self.table is not None:
            return self.table[samples.cpu() % len(self.table)].to(images.device)
        return self.answer(images)

    @torch.no_grad()
    def answer(self, images: Tensor) -> Tensor:
        """Logits for images that are normalised for the student: x scale + shift is what the teacher was trained on."""
        answers: Tensor = self._module(images.float() * self._scale + self._shift)
        return answers.float()


def make_teacher(spec: RunSpec, world: World, own: Dataset | None, prepare: Prepare) -> Teaching | None:
    """The teacher that the options name; all workers call this together."""
    path = spec.options.optimizer.teacher
    if path is None:
        return None
    loaded = load(path)
    module = _fitting(loaded, spec, path)
    module = module.to(device=world.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    teaching = Teaching(module, *_conversion(loaded, spec, prepare, world.device))
    size = 4 * spec.data.train_images * spec.subject.num_classes
    if prepare.is_constant and size <= MOST_BYTES:
        dataset = own or open_dataset(spec.options, "train", spec.subject.image_size, spec.subject.in_channels)
        kept = (
            None
            if own is not None
            else cache_folder() / "teachers" / f"{_key(module, loaded, spec, world.device)}.safetensors"
        )
        teaching.table = _answers(teaching, dataset, spec, world, prepare, kept)
    return teaching


def _fitting(loaded: Loaded, spec: RunSpec, path: str) -> nn.Module:
    if loaded.module is None:
        raise UserError(
            f"--teacher {path} is an export in another format than torch's: name the run it came from, or export it with "
            "--format torch"
        )
    names, classes = loaded.class_names, spec.data.class_names
    if loaded.num_classes != spec.subject.num_classes or (names and classes and tuple(names) != tuple(classes)):
        raise UserError(
            f"the teacher {path} knows other classes ({loaded.num_classes}) than the data ({spec.subject.num_classes}): distillation "
            "needs the same ones in the same order"
        )
    if loaded.preprocessing.in_channels != spec.subject.in_channels:
        raise UserError(
            f"the teacher {path} takes {loaded.preprocessing.in_channels} channels, the student {spec.subject.in_channels}: train "
            "it with --in-channels of the teacher"
        )
    return loaded.module.requires_grad_(False).eval()


def _conversion(loaded: Loaded, spec: RunSpec, prepare: Prepare, device: torch.device) -> tuple[Tensor, Tensor]:
    """(scale, shift), [1, C, 1, 1], from the student's normalisation a x + b to the teacher's c x + d: c / a, d - b c / a."""
    theirs, ours = loaded.preprocessing.normalization, prepare.normalization_name
    one, zero = torch.ones(spec.subject.in_channels), torch.zeros(spec.subject.in_channels)
    if theirs != ours:
        if "per-image" in (theirs, ours):
            raise UserError(
                f"the teacher was trained with --normalization {theirs}, this run has {ours}: give the same"
            )
        channels = spec.data.channels
        own, other = (Normalization.named(name, channels) for name in (ours, theirs))
        for channel in range(spec.subject.in_channels):
            source = min(channel, channels - 1)  # grey images are repeated for a network for colour
            one[channel] = other.scale[source] / own.scale[source]
            zero[channel] = other.shift[source] - own.shift[source] * one[channel]
    return one.view(1, -1, 1, 1).to(device), zero.view(1, -1, 1, 1).to(device)


def _answers(
    teaching: Teaching, dataset: Dataset, spec: RunSpec, world: World, prepare: Prepare, kept: Path | None
) -> Tensor:
    """All answers: kept ones, or computed now, each worker some batches of the stored order."""
    table = _read(kept, (len(dataset), spec.subject.num_classes))
    missing = torch.tensor([float(table is None)], device=world.device)
    world.sum_over_all([missing])
    if table is not None and not missing.item():
        return table
    table = torch.zeros(len(dataset), spec.subject.num_classes, device=world.device)
    options = spec.options
    feed = ValidationFeed(
        dataset, spec.topology.micro_batch, world.rank, world.size,
        prefetch=options.data.prefetch, threads=options.data.loader_threads, transform=prepare.on_host(True),
    )  # fmt: skip
    quiet = options.run.quiet or not world.is_main
    with feed, track(len(feed) * spec.topology.micro_batch, "Teacher", quiet=quiet) as bar:
        for batch in feed:
            images, _ = prepare(batch, True)
            table[batch.samples[: batch.num_valid]] = teaching.answer(images)[: batch.num_valid]
            bar.advance(batch.num_valid)
    world.sum_over_all([table])  # each row from one worker: exact
    table = table.cpu()
    if kept is not None and not kept.exists():
        try:
            make_parent(kept)
            write_atomically(kept, save({"answers": table}))
        except OSError as error:
            _logger.info("the teacher's answers could not be kept in %s: %s", kept, error)
    return table


def _read(kept: Path | None, shape: tuple[int, int]) -> Tensor | None:
    if kept is None or not kept.exists():
        return None
    try:
        found = load_file(str(kept)).get("answers")
    except (OSError, SafetensorError):
        return None  # damaged: computed again
    return found if found is not None and tuple(found.shape) == shape else None


def _key(module: nn.Module, loaded: Loaded, spec: RunSpec, device: torch.device) -> str:
    """A name for everything that the answers depend on."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    options = spec.options
    data = {name: to_plain(value) for name, value in options.changed().items() if hasattr(options.data, name)}
    facts = (
        Identity.of(options.data, spec.data).to_json(), data, loaded.preprocessing.to_json(), spec.subject.normalization,
        spec.subject.image_size, spec.topology.micro_batch, options.precision.precision, torch.get_num_threads(), torch.__version__,
        # The folder may be shared by machines that round differently.
        device.type, torch.backends.cpu.get_cpu_capability(),
    )  # fmt: skip
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:40]
