"""Recomputed batch-norm statistics, for weights that were not trained themselves (averages)."""

import dataclasses

import torch
from torch import Tensor

from conveyor.checkpoint.state import State
from conveyor.errors import UserError
from conveyor.models.layers import norms
from conveyor.run.assemble import UserObjects, make_feed, make_prepare
from conveyor.run.stored_options import stored_options
from conveyor.spec import resolve
from conveyor.training import build_model
from conveyor.world.world import World


def recompute_statistics(state: State, batches: int) -> dict[str, Tensor]:
    """The model's tensors with running statistics = means over `batches` micro-batches of the training data."""
    if batches < 1:
        raise UserError(f"--recompute-statistics {batches}: give at least 1 micro-batch")
    options = stored_options(None, state.options).replace(layout="1x1", device="cpu", ema_decay=None)
    spec, world = resolve(options), World()
    # Long enough for `batches`: a short run may have seen fewer micro-batches.
    length = dataclasses.replace(spec.length, updates_total=max(spec.length.updates_total, batches))
    spec = spec.replace(length=length)
    model = build_model.place_model(build_model.build_model(spec, state=state), spec, world.device)
    prepare = make_prepare(spec, world)
    layers = norms.batch_norms(model)
    momenta = [layer.momentum for layer in layers]
    model.train()
    with make_feed(spec, world, UserObjects(), prepare, start_update=0) as feed, torch.no_grad():
        for _ in range(batches):
            model(prepare(next(feed), True)[0])
    for layer in layers:
        layer.momentum = 1.0
    norms.commit(layers)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    return {name: value.to(state.model[name].dtype) for name, value in model.state_dict().items()}
