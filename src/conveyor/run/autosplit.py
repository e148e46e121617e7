"""Automatic stages: cut by measured cost, once, and then kept with the run's options."""

import itertools
from pathlib import Path

import torch

from conveyor.models import units
from conveyor.numerics.threads import using_threads
from conveyor.run import folder as rundir
from conveyor.spec import RunSpec
from conveyor.training import build_model
from conveyor.training.split_units import split_units

MEASURED_BATCH = 8
"""Images of the measured pass, at most: the shares of the units hardly change beyond."""


def is_automatic(spec: RunSpec) -> bool:
    """Whether stages run in workers of their own and no option says where they begin."""
    return spec.layout.depth > 1 and spec.options.batch.splits in ((), ("auto",))


def choose(spec: RunSpec, folder: Path | None, device: torch.device) -> tuple[tuple[str, ...], str]:
    """The first layer of each further stage, and a note for the user.

    A resumed run keeps its stages, which are stored in its folder. Otherwise one process measures every unit
    with the run's threads; on an accelerator the units' multiply-adds and bytes stand in for a measurement.
    """
    stages = spec.topology.stages
    if folder is not None and (folder / rundir.OPTIONS).exists():
        stored = rundir.read_options(folder)
        kept = stored.batch.splits
        if len(kept) == stages - 1 and kept != ("auto",) and stored.model.model == spec.subject.name:
            return kept, f"split at {' '.join(kept)}, as before"
    model = build_model.build_model(spec)
    found = units.trace(model, spec.subject.image_size, spec.subject.in_channels)
    costs: list[float] | None = None
    batch = min(spec.topology.micro_batch, MEASURED_BATCH)
    if device.type == "cpu":
        plain = spec.replace(options=spec.options.replace(recompute=(), compile=False))
        with using_threads(spec.layout.threads):
            images = torch.rand(spec.subject.shape(batch), generator=torch.Generator().manual_seed(0))
            images = images.contiguous(memory_format=torch.channels_last)
            placed = build_model.place_model(model, plain, device)
            costs = [sum(seconds) / batch for seconds in units.unit_seconds(placed, images).values()]
    points = split_units(spec, model, found, costs)
    names = tuple(found[point].path for point in points)
    if costs is None:
        return names, f"split at {' '.join(names)} by estimated cost"
    edges = [0, *points, len(costs)]
    parts = [sum(costs[low:high]) for low, high in itertools.pairwise(edges)]
    shares = " | ".join(f"{100 * part / sum(parts):.0f} %" for part in parts)
    return names, f"split at {' '.join(names)} by measured cost: {shares}"
