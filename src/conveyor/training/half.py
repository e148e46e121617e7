"""How a run computes in half precision on CPUs: the main worker measures once, and the run keeps what was found."""

import torch
from torch import Tensor, nn

from conveyor.checkpoint.state import State
from conveyor.models.clone import weightless
from conveyor.numerics.convolution import Geometry, is_plain
from conveyor.numerics.half_choice import HalfChoice, Layer, choose
from conveyor.numerics.precision import Precision
from conveyor.spec import RunSpec
from conveyor.world.world import World


def half_choice(spec: RunSpec, state: State | None, world: World, model: nn.Module) -> HalfChoice | None:
    """What `state` has stored, else what the main worker measures; all workers must ask. None: no matter for this run."""
    precision = Precision.from_options(spec.options.precision)
    if not precision.is_half or world.device.type != "cpu":
        return None
    stored = None if state is None else state.progress.get("half")
    if isinstance(stored, dict):
        return HalfChoice.from_json(stored)
    found = choose(_layers(model, spec), precision.compute).to_json() if world.is_main else None
    return HalfChoice.from_json(world.broadcast_object(found))


def _layers(model: nn.Module, spec: RunSpec) -> list[Layer]:
    """The plain convolutions of a model; none if its shapes cannot be had without running it."""
    found: list[Layer] = []

    def see(layer: nn.Module, inputs: tuple[Tensor, ...], result: object) -> None:
        assert isinstance(layer, nn.Conv2d)
        found.append((tuple(inputs[0].shape[1:]), tuple(layer.weight.shape), Geometry.of(layer, direct=True)))

    try:
        outline = weightless(model).eval()
        for module in outline.modules():
            if isinstance(module, nn.Conv2d) and is_plain(module):
                module.register_forward_hook(see)
        with torch.no_grad():
            outline(torch.empty(spec.subject.shape(1), device="meta"))
    except (RuntimeError, NotImplementedError, TypeError):
        return []  # a user's own module may look at values
    return found
