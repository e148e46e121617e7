"""ResNeXt (Xie et al. 2017): bottlenecks whose 3x3 convolution works in `cardinality` groups."""

from collections.abc import Sequence

from conveyor.errors import UserError
from conveyor.models.initialise import initialise
from conveyor.models.layers.norms import NormChoice
from conveyor.models.resnet import Design, ResNet, zero_last_gammas


def make(
    *,
    layers: Sequence[int],
    num_classes: int,
    in_channels: int,
    norm: NormChoice,
    cifar: bool = False,
    wide: bool = False,
    group_dim: int = 4,
    cardinality: int = 32,
    shortcut: str = "B",
    project_first: bool = False,
    stride_in_1x1: bool = False,
    zero_init_gamma: str = "none",
    init: str = "torch",
    survival: float = 1.0,
) -> ResNet:
    """A ResNeXt: inner width = plain width x group_dim x cardinality / stem width (2 for 32x4d with a stem of 64).

    On small images the narrow net has a stem of 16, so the factor is 8 for 32x4d; `wide` has a stem of 64.
    """
    if wide and not cifar:
        raise UserError("`wide` exists for the nets for small images only (cifar_resnext11 to 65).")
    if shortcut == "A" and project_first:
        raise UserError("project_first needs shortcut B: shortcut A has no projection.")
    width = 64 if wide or not cifar else 16
    design = Design(
        norm=norm,
        shortcut=shortcut,
        project_first=project_first,
        stride_in_1x1=stride_in_1x1,
        cardinality=cardinality,
        inner_factor=group_dim * cardinality / width,
        survival=survival,
    )
    model = ResNet(layers, width, True, cifar, design, num_classes, in_channels)
    initialise(model, init)
    zero_last_gammas(model, zero_init_gamma)
    return model
