"""How much memory recomputation saves, measured on the run's own model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from conveyor.numerics import recompute
from conveyor.numerics.precision import Precision
from conveyor.spec import RunSpec

SAMPLES = 2
"""Images of the measured pass; what a pass keeps grows with them."""


def recompute_note(model: nn.Module, spec: RunSpec, device: torch.device) -> str | None:
    """What a micro-batch keeps for its backward pass, with and without recomputation; None when nothing is recomputed."""
    names = recompute.wrapped(model)
    if not names:
        return None
    kept = _kept(model, spec, device)
    with _without_recompute(model, names):
        whole = _kept(model, spec, device)
    return (
        f"recompute: a micro-batch keeps {kept / 2**20:.1f} MiB for its backward pass instead of {whole / 2**20:.1f} MiB "
        f"({len(names)} modules run twice)"
    )


def _kept(model: nn.Module, spec: RunSpec, device: torch.device) -> float:
    """Bytes that the forward pass of one micro-batch keeps, from a pass with `SAMPLES` images."""
    dtype = Precision.from_options(spec.options.precision).compute
    images = torch.zeros(spec.subject.shape(SAMPLES), dtype=dtype, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.random.fork_rng(devices=[]):
        return recompute.saved_bytes(lambda: model(images)) * spec.topology.micro_batch / SAMPLES


@contextmanager
def _without_recompute(model: nn.Module, names: list[str]) -> Iterator[None]:
    modules = [model.get_submodule(name) for name in names]
    wrappers: list[Any] = [module.forward for module in modules]
    for module, wrapper in zip(modules, wrappers, strict=True):
        module.forward = wrapper.forward
    try:
        yield
    finally:
        for module, wrapper in zip(modules, wrappers, strict=True):
            module.forward = wrapper
