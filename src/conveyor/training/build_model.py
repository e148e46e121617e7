"""From options to a lane that can run: the order of the transforms on a model, on one page.

weights (init, load, or resume) -> frozen ones -> memory format -> precision -> fast or compiled kernels -> recompute -> cut into stages -> lane
"""

from collections.abc import Collection

import torch
from torch import nn

from conveyor import models
from conveyor.checkpoint.state import State
from conveyor.data.subject import Subject
from conveyor.errors import UserError
from conveyor.models import units
from conveyor.models.layers import norms
from conveyor.models.layers.adopt import adopt_norms, adopt_random_layers
from conveyor.models.layers.stochastic import Stochastic, name_layers
from conveyor.models.weights import head_name
from conveyor.numerics import convolution, recompute
from conveyor.numerics.precision import Precision
from conveyor.optim import kinds
from conveyor.options import Options
from conveyor.spec import RunSpec
from conveyor.training.lane import Lane
from conveyor.training.load_weights import load_into, start_weights
from conveyor.training.split_units import split_units
from conveyor.training.whole_model_lane import LaneWork, WholeModelLane


def build_model(spec: RunSpec, *, own: nn.Module | None = None, state: State | None = None) -> nn.Module:
    """The network with its weights, on the CPU: from the seed, from `--weights`, or from a checkpoint."""
    options = spec.options
    model = adopt_random_layers(adopt_norms(own)) if own is not None else _fresh(options, spec.subject)
    name_layers(model)
    if state is not None:
        load_into(model, state.model, "the checkpoint")
    elif options.model.weights is not None:
        start_weights(model, options.model)
    return model


def check_trainable(model: nn.Module) -> None:
    """Refuse a user's module that no run can train."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("the model has no parameter that requires a gradient: there is nothing to train")
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise UserError(
                f"{name} of the model is {parameter.dtype}: make it float32 (model.float(), torch.set_default_dtype); "
                "--precision chooses the arithmetic"
            )


def outline(options: Options, about: Subject) -> nn.Module:
    """The network on the meta device: its names and shapes, without memory or time for its weights."""
    try:
        with torch.device("meta"):
            return _fresh(options, about)
    except (RuntimeError, NotImplementedError, TypeError):
        # A user's own code may look at values, which the meta device has not.
        return _fresh(options, about)


def _fresh(options: Options, about: Subject) -> nn.Module:
    """The network with weights from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.run.seed)
        return models.build_from(options.model, **about.arguments())


def check_splits(model: nn.Module, spec: RunSpec) -> None:
    """Refuse a split that names no layer: a lane of depth 1 does not cut there, but the mistake is the same on any layout."""
    if spec.options.batch.splits or spec.topology.stages > 1:
        split_units(spec, model, units.trace(model, spec.subject.image_size, spec.subject.in_channels))


def freeze(model: nn.Module, spec: RunSpec, update: int = 0) -> None:
    """Take the gradient from what is not trained after `update` updates, and stop the norms that belong to it."""
    chosen = spec.options.optimizer
    if spec.release is not None and update >= spec.release:
        return
    backbone = chosen.freeze == "backbone"
    kinds.freeze(model.named_parameters(), (f"^{head_name(model)}.",) if backbone else chosen.train_only)
    for norm in norms.batch_norms(model) if backbone or chosen.frozen_norms else ():
        norm.frozen = not norm.weight.requires_grad
        norm.train(norm.training)


def release(model: nn.Module, names: Collection[str]) -> None:
    """Give the parameters of these names their gradient back, and let all norms go on."""
    for name, parameter in model.named_parameters():
        if name in names:
            parameter.requires_grad_(True)
    for norm in norms.batch_norms(model):
        norm.frozen = False
    model.train()


def layer_rates(model: nn.Module, decay: float) -> dict[str, float]:
    """The factor of each parameter's rate by `--layer-decay`; a model without blocks is counted in its outermost parts."""
    if decay == 1:
        return {}
    head = head_name(model)
    parts = models.blocks(model) or [name for name, _ in model.named_children() if name != head]
    return kinds.layer_factors([name for name, _ in model.named_parameters()], parts, head, decay)


def place_model(
    model: nn.Module, spec: RunSpec, device: torch.device, *, train: bool = True, update: int = 0
) -> nn.Module:
    """Freezing, memory format, precision, fast or compiled kernels and recomputation, in this order; the model is changed in place."""
    if train:
        freeze(model, spec, update)
    model = model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    precision = Precision.from_options(spec.options.precision, spec.half)
    precision.apply(model)
    if train and spec.options.precision.compile:
        _compile(model, spec, device, precision)
    elif train and device.type == "cpu":
        if precision.fuses:
            norms.fuse(model)
        if not precision.is_half:
            convolution.install(model)
    if train and spec.options.batch.recompute:
        recompute.apply(model, spec.options.batch.recompute, models.blocks(model))
    return model


def _compile(model: nn.Module, spec: RunSpec, device: torch.device, precision: Precision) -> None:
    """Compile the blocks in place of our kernels for CPUs, which a compiler cannot look into."""
    from conveyor.numerics import compiled

    blocks = models.blocks(model)
    if not blocks:
        raise UserError(f"--compile compiles the blocks of a model, and {spec.subject.name} has none: leave it out")
    compiled.check(device)
    opaque: list[type[nn.Module]] = [Stochastic]  # they draw numbers for their micro-batch
    if spec.options.model.bn_span > 1:
        opaque.append(norms.BatchNorm)  # a span asks other workers
    if precision.is_half:
        opaque += [nn.Conv2d, nn.Linear]  # their weights are kept rounded
    if precision.policy.stochastic:
        opaque += [norms.BatchNorm, norms.GroupNorm]  # they round with numbers drawn for their micro-batch
    compiled.apply(model, blocks, [module for module in model.modules() if isinstance(module, tuple(opaque))])


def build_lane(work: LaneWork, model: nn.Module) -> Lane:
    """What runs this worker's slots: the whole model, or its stage of a pipeline."""
    for norm in norms.batch_norms(model):
        norm.span_group = work.world.span_group
    if work.world.depth > 1:
        from conveyor.training.stage_lane import StageLane

        return StageLane(work, model)
    return WholeModelLane(work, model)
