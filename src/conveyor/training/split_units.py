"""Where the stages of a run begin: as named, or balanced by cost."""

from collections.abc import Sequence

from torch import nn

from conveyor import models
from conveyor.errors import UserError
from conveyor.models import library_models, splits, units
from conveyor.pipeline.balance import automatic_splits
from conveyor.spec import RunSpec


def split_units(
    spec: RunSpec, model: nn.Module, found: Sequence[units.Unit], costs: Sequence[float] | None = None
) -> list[int]:
    """The units before which a new stage begins; `costs` are measured ones, else the units are estimated.

    With `--compile` no block is cut in two: a block that is compiled in parts could round differently. Nor are those of timm and
    torchvision unless `--splits` says so: what crosses arrives channels-last, and inside a block it need not lie so.
    """
    options, compiled = spec.options.batch, spec.options.precision.compile
    whole = compiled or library_models.is_library(spec.subject.name)
    blocks = unit_ranges(found, models.blocks(model)) if whole else []
    inside = {index for block in blocks for index in block[1:]}
    if options.splits in ((), ("auto",)):
        return automatic_splits(
            found,
            spec.topology.stages,
            include=options.split_include,
            exclude=options.split_exclude,
            closed=inside,
            costs=costs,
        )
    points = splits.resolve(spec.subject.name, found, options.splits)
    for point, name in zip(points, options.splits, strict=True):
        if compiled and point in inside:
            raise UserError(
                f"--compile compiles whole blocks, and --splits {name} lies inside one: choose the first layer of a block, "
                "or leave --compile out"
            )
    return points


def unit_ranges(found: Sequence[units.Unit], modules: Sequence[str]) -> list[range]:
    """The units of each module; a module's units follow each other."""
    ranges = []
    for module in modules:
        inside = [unit.index for unit in found if unit.path == module or unit.path.startswith(module + ".")]
        if inside:
            ranges.append(range(inside[0], inside[-1] + 1))
    return ranges
