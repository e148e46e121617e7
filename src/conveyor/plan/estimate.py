"""The cost of each unit without running it: from its multiply-adds and bytes, for a given hardware.

forward  = overhead + images * (2 multiply-adds / flops + bytes read and written / bandwidth)
backward = twice that: a convolution computes two gradients, the rest moves twice the bytes
"""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from conveyor.models.registry import blocks, build_from
from conveyor.models.units import Unit, trace
from conveyor.options.model import ModelOptions
from conveyor.plan.activations import saved_bytes
from conveyor.plan.costs import Linear, Model, UnitCost
from conveyor.plan.hardware import Hardware


def meta_model(options: ModelOptions, **more: object) -> nn.Module:
    """The model without memory for its weights."""
    with torch.device("meta"):
        return build_from(options, **more)


def describe(model: nn.Module, image_size: int, in_channels: int) -> tuple[list[Unit], dict[str, float]]:
    """The units of a model on the meta device, and what each keeps for the backward pass."""
    return trace(model, image_size, in_channels), saved_bytes(model, image_size, in_channels)


def estimated(
    model: nn.Module,
    image_size: int,
    in_channels: int,
    hardware: Hardware,
    times: Mapping[str, tuple[Linear, Linear]] | None = None,
    element_bytes: int = 4,
    again: Mapping[str, float] | None = None,
) -> Model:
    """The costs of a model on the meta device; `times` (forward and backward by node name) replace the estimates.

    `element_bytes` is 2 for activations in half precision; `again` is the price of recomputation (see `Model`).
    """
    units, saved = describe(model, image_size, in_channels)
    scale = element_bytes / 4
    costs = []
    for unit, block in zip(units, owners(units, blocks(model)), strict=True):
        forward = _forward(unit, hardware, scale)
        measured = (times or {}).get(unit.name, (forward, forward + forward))
        costs.append(
            UnitCost(
                unit.path,
                *measured,
                saved_bytes=saved.get(unit.name, 0.0) * scale,
                boundary_bytes=(units[unit.index + 1].crossing_bytes if unit.index + 1 < len(units) else 0) * scale,
                output_bytes=unit.activation_bytes * scale,
                weight_bytes=4.0 * unit.parameters,
                block=block,
                inside=unit.inside,
            )
        )
    return Model(costs, input_bytes=in_channels * image_size**2 * 4.0 * scale, again=again)


def _forward(unit: Unit, hardware: Hardware, scale: float) -> Linear:
    moved = 2 * unit.activation_bytes * scale
    return Linear(hardware.overhead, 2 * unit.multiply_adds / hardware.flops + moved / hardware.bandwidth)


def owners(units: Sequence[Unit], names: Sequence[str]) -> list[str | None]:
    """The residual block of `names` that each unit belongs to, if any."""
    return [next((name for name in names if f"{unit.path}.".startswith(f"{name}.")), None) for unit in units]
